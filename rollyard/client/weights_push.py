"""Push of weights from a trainer's memory to a pool: the weights are written to a folder, then served.

    async with client.weights("policy", folder="/shared/weights") as weights:
        version = await weights.push(model)        # step1, step2, ...

While a folder is written, its name begins with `.writing-`. A complete folder is renamed to its version. If an earlier
push has left a folder with this name, the new folder's name gets a suffix. The files of the earlier folder must not
change, because engines may still load them. The server never gets the path of an unfinished folder. A push deletes the
folders of earlier pushes to the same pool that died before the server got their paths (`push_marks`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from rollyard.client.push_marks import PushMark, marks_left
from rollyard.client.weights_client import WeightsClient
from rollyard.core.errors import Conflict, Invalid, NoProgress
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.weights import Mode, WeightsStatus, WeightsUpdate

STEP = re.compile(r"step([0-9]+)")
UNFINISHED = ".writing-"


@runtime_checkable
class SavesPretrained(Protocol):
    """A model of transformers or peft. Remove a DDP or FSDP wrapper first."""

    def save_pretrained(self, folder: Any, /) -> Any: ...


Weights = SavesPretrained | Mapping[str, Any] | Path
"""A model; or a model's tensors by name, of torch or numpy; or a complete folder."""


class WeightsPush:
    """Pushes new weights to one InferencePool, one version after the other."""

    def __init__(
        self,
        client: WeightsClient,
        pool: str,
        *,
        folder: Path | str | None = None,
        namespace: str | None = None,
        mode: Mode = "Pause",
        keep: int = 2,
    ) -> None:
        """`folder`: where versions are written; the engines' nodes must read it too. Default: ~/.rollyard/weights/POOL.
        `keep`: number of served versions whose folders stay, the newest ones. When a new version is served, this
        WeightsPush deletes the other folders that it wrote before.
        """
        if keep < 1:
            raise ValueError("`keep` must be at least 1: engines that restart read the folder of the served version")
        self._client, self._mode, self._keep = client, mode, keep
        self.namespace, self.pool = namespace or client.context.namespace, pool
        self.folder = Path(folder or Path.home() / ".rollyard" / "weights" / pool).absolute()
        self.step = 0
        """Number of the last successful push. If the caller of `push` gives no version, the version is `step<n>`, where
        n is the number of the push. Before the first push: the highest such n in the pool's status, or 0."""
        self.version: str | None = None
        """Last version that `push` returned."""
        self._written = set[Path]()
        self._served: list[Path] = []
        """Folders of the newest served versions, at most `keep`, oldest first."""

    async def __aenter__(self) -> Self:
        status = await self._client.weights_status(self.namespace, self.pool)
        self.step = _last_step(status)
        await asyncio.to_thread(self.folder.mkdir, parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Keep the folders, because engines that restart read the last folder."""

    async def push(self, weights: Weights, version: str | None = None) -> str:
        """Write the weights, and return their version when the update is complete. Default version: `step<n>` with a
        number greater than those in the pool's status.

        The update is complete when each endpoint serves the version or has failed, and at least one serves it.
        Raises NoProgress if the update failed or another update replaced it, and the errors of `update_weights`.
        """
        older = self._written.copy()
        left = await asyncio.to_thread(marks_left, self.folder, self._mark_pool)
        try:
            status = await self._client.weights_status(self.namespace, self.pool)  # read after the end of those pushes
        except BaseException:
            for mark in left:
                mark.close()
            raise
        for mark in left:
            await asyncio.to_thread(mark.delete_folder, _paths(status))
        number = 1 + (self.step if version else max(self.step, _last_step(status)))
        version = version or f"step{number}"
        if status.record(version) is not None:
            raise Conflict(f"weights {version!r} exist already in pool {self.pool!r}; choose another version")
        path, own = await self._write(weights, version)
        update = WeightsUpdate(version=version, path=str(path), mode=self._mode)
        try:
            await self._client.update_weights(self.namespace, self.pool, update)
        except BaseException:
            if own is not None:
                own.close()
            raise
        if own is not None:
            await asyncio.to_thread(own.end)
        status = await self._client.wait_weights(self.namespace, self.pool, version)
        operation = status.operation
        if operation is None or operation.target.version != version or operation.phase != "Complete":
            why = operation.message if operation is not None and operation.target.version == version else ""
            raise NoProgress(f"weights {version} are not served: {why or 'another update replaced this one'}")
        self.version, self.step = version, number
        self._served = [*(folder for folder in self._served if folder != path), path][-self._keep :]
        for folder in older - set(self._served):
            self._written.discard(folder)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return version

    @property
    def _mark_pool(self) -> str:
        """The pool and its server. The server is named by its CA, because its URL may change when it restarts."""
        context = self._client.context
        server = hashlib.sha256((context.ca_pem or context.url).encode()).hexdigest()
        return f"{self.namespace}/{self.pool} {server[:16]}"

    async def _write(self, weights: Weights, version: str) -> tuple[Path, PushMark | None]:
        """Return the folder of the weights, and the mark of this push if it wrote the folder."""
        if isinstance(weights, Path):
            return weights.absolute(), None
        config = None if isinstance(weights, SavesPretrained) else await self._config()
        return await asyncio.to_thread(self._write_folder, weights, version, config)

    async def _config(self) -> Path:
        """Return the path of the pool's config.json, which a model needs in addition to its tensors. Raises Invalid."""
        key = ObjectKey(kind="InferencePool", namespace=self.namespace, name=self.pool)
        pool = await self._client.get(key)
        assert isinstance(pool, InferencePool)
        config = Path(pool.spec.model.path) / "config.json"
        if not config.is_file():
            raise Invalid(
                f"{config} cannot be read here, so tensors alone cannot be pushed; push the model, or a whole folder"
            )
        return config

    def _write_folder(
        self, weights: SavesPretrained | Mapping[str, Any], version: str, config: Path | None
    ) -> tuple[Path, PushMark]:
        other = f"{version}-{secrets.token_hex(4)}"
        unfinished = self.folder / f"{UNFINISHED}{other}"
        unfinished.mkdir()
        mark: PushMark | None = None
        try:
            mark = PushMark.create(self._mark_pool, unfinished, [version, other])
            if isinstance(weights, SavesPretrained):
                weights.save_pretrained(unfinished)
            else:
                assert config is not None
                shutil.copyfile(config, unfinished / "config.json")
                _save_tensors(weights, unfinished / "model.safetensors")
            for file in unfinished.iterdir():
                _sync(file)
            path = self.folder / version
            if path.exists():
                path = self.folder / other
            unfinished.rename(path)
            _sync(self.folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            if mark is not None:
                mark.end()
            raise
        self._written.add(path)
        return path, mark


def _paths(status: WeightsStatus) -> list[str]:
    """Return the folders of the weights that the pool serves, served or updates to."""
    known = [*status.history, *([status.current] if status.current is not None else [])]
    known += [status.operation.target] if status.operation is not None else []
    return [str(record.path) for record in known if record.path is not None]


def _last_step(status: WeightsStatus) -> int:
    """Return the highest number of a version `step<n>` in the pool's status, or 0."""
    names = [record.version for record in (status.current, *status.history) if record is not None]
    names += [status.operation.target.version] if status.operation is not None else []
    return max((int(found[1]) for name in names if (found := STEP.fullmatch(name))), default=0)


def _save_tensors(tensors: Mapping[str, Any], file: Path) -> None:
    if all(hasattr(tensor, "detach") for tensor in tensors.values()):
        from safetensors.torch import save_file

        plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
        save_file({name: tensor.clone() for name, tensor in plain.items()}, file, metadata={"format": "pt"})
        return
    from safetensors.numpy import save_file as save_arrays

    save_arrays(dict(tensors), file, metadata={"format": "pt"})


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
