"""The cache of builds: layers by their digest, the layer that each step has made, and those of each base.

Folders below the cache: `layers`; `steps` has a small file for each step and each base, named by the digest of all that it
depends on; `work` has a folder for each build that is under way. A layer or step is complete or absent. What a killed build
leaves in `work`, the next build deletes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.host.removed_folder import remove_folder
from rollyard.host.sandbox_account import close_to_others
from rollyard.image_builds.tree_changes import Layer
from rollyard.images.locks import FileLock, try_lock, wait_for_lock
from rollyard.images.whole_file import copy_whole, write_whole


@dataclass(frozen=True)
class Step:
    """The result of a step. `layer`: None if the step changed no file. `env`: all variables of the image, if the step sets
    them."""

    layer: Layer | None
    env: dict[str, str] | None = None


class LayerStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("", "layers", "steps", "work"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            close_to_others(folder / name)  # files of an image keep its modes, also 0777

    def path(self, layer: Layer) -> Path:
        return self._folder / "layers" / layer.digest.replace(":", "-")

    def find(self, key: str) -> Step | None:
        """Return what a step made earlier; None if that is unknown, or its layer is gone."""
        try:
            step = json.loads((self._folder / "steps" / key).read_bytes())
            made = step["layer"]
            layer = None if made is None else Layer(**made)
            if layer is not None:
                os.utime(self.path(layer))
            os.utime(self._folder / "steps" / key)
        except (FileNotFoundError, ValueError, KeyError):
            return None
        return Step(layer, step.get("env"))

    def find_base(self, key: str) -> list[Layer] | None:
        """Return the layers of a base, the lowest first; None if they are unknown, or one is gone."""
        try:
            layers = [Layer(**one) for one in json.loads((self._folder / "steps" / key).read_bytes())["layers"]]
            for layer in layers:
                os.utime(self.path(layer))
        except (FileNotFoundError, ValueError, KeyError):
            return None
        return layers

    def add(self, growing: Path, layer: Layer) -> None:
        """Move a layer's file into the cache."""
        growing.chmod(0o644)
        growing.replace(self.path(layer))

    def add_copy(self, file: Path, layer: Layer) -> None:
        """Take a layer's file into the cache, as a further name of it if it is on the same disk. Blocks."""
        copy_whole(file, self.path(layer))

    def keep(self, key: str, layer: Layer | None, env: Mapping[str, str] | None = None) -> None:
        """Remember what a step made."""
        self._keep(
            key, {"layer": None if layer is None else layer.to_json(), "env": None if env is None else dict(env)}
        )

    def keep_base(self, key: str, layers: Sequence[Layer]) -> None:
        """Remember the layers of a base."""
        self._keep(key, {"layers": [layer.to_json() for layer in layers]})

    def _keep(self, key: str, made: dict[str, object]) -> None:
        write_whole(self._folder / "steps" / key, json.dumps(made).encode())

    @contextlib.asynccontextmanager
    async def work_folder(self) -> AsyncIterator[tuple[Path, int]]:
        """Yield a new folder, and the descriptor of its lock. The folder is deleted at the end. Until then no other build
        deletes layers."""
        users = await wait_for_lock(self._folder / "users", shared=True)
        try:
            self._remove_leftovers()
            folder, lock = self._new_folder()
            try:
                folder.mkdir()
                folder.chmod(0o755)
                yield folder, lock.fd
            finally:
                remove_folder(folder)
                lock.release_and_delete()
        finally:
            users.release()

    def _new_folder(self) -> tuple[Path, FileLock]:
        """Return the path of a new folder, and its lock. Another build may take a new lock file for a leftover."""
        lock = None
        while lock is None:
            folder = self._folder / "work" / secrets.token_hex(8)
            lock = try_lock(folder.with_name(f"{folder.name}.lock"), shared=False)
        return folder, lock

    def trim(self, limit_bytes: int) -> int:
        """Delete the layers that were used longest ago until the rest is within the limit, unless a build is under way.
        Return the number of freed bytes."""
        alone = try_lock(self._folder / "users", shared=False)
        if alone is None:
            return 0
        try:
            files = sorted((file.stat().st_mtime, file.stat().st_size, file.path) for file in self._layers())
            total, freed = sum(size for _, size, _ in files), 0
            for _, size, path in files:
                if total - freed <= limit_bytes:
                    break
                os.unlink(path)
                freed += size
            return freed
        finally:
            alone.release()

    def _layers(self) -> Iterator[os.DirEntry[str]]:
        yield from os.scandir(self._folder / "layers")

    def _remove_leftovers(self) -> None:
        for lock_path in (self._folder / "work").glob("*.lock"):
            lock = try_lock(lock_path, shared=False)
            if lock is not None:
                remove_folder(lock_path.with_suffix(""))
                lock.release_and_delete()
