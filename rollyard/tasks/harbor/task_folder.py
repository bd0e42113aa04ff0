"""Task folders of Harbor on this machine, read into tasks."""

from __future__ import annotations

import base64
import hashlib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollyard.core.errors import TaskError
from rollyard.kinds.harbor_config import HarborConfig
from rollyard.kinds.harbor_task import DOCKERFILE, INSTRUCTION, LOOSE

CONFIG, COMPOSE = "task.toml", "docker-compose.yaml"
_NAMED = (INSTRUCTION, "trajectory.json", ".harborignore", f"{LOOSE}{COMPOSE}", f"tests/{COMPOSE}")
"""Files that are packed if they are there. All but the first are refused by the task's model, which says why."""
_METADATA_CHARS = 200
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class TaskFolder:
    path: Path
    name: str
    config: HarborConfig
    metadata: Mapping[str, Any]

    @property
    def image(self) -> str | Path | None:
        """Name of the image, or the folder with the Dockerfile from which it is built; None: there is none."""
        return self._image(self.config.environment.docker_image, self.path / LOOSE)

    @property
    def verifier_image(self) -> str | Path | None:
        """The same of a verifier with an image of its own, which has the tests."""
        verifier = self.config.verifier
        if verifier.mode != "separate" or self.config.steps:
            return None
        named = verifier.environment.docker_image if verifier.environment is not None else None
        return self._image(named, self.path / "tests")

    @property
    def contexts(self) -> list[Path]:
        """Folders from whose Dockerfiles images are built."""
        return [image for image in (self.image, self.verifier_image) if isinstance(image, Path)]

    def _image(self, named: str | None, context: Path) -> str | Path | None:
        if named is not None:
            return image_name(named, self.path)
        inside(self.path, context)
        return context if inside(self.path, context / DOCKERFILE).is_file() else None

    def task(self, image: str, variables: Mapping[str, str], verifier_image: str | None = None) -> dict[str, Any]:
        """Return the task as JSON. Raises TaskError for a file that cannot be packed."""
        fields: dict[str, Any] = {
            "kind": "harbor", "image": image, "metadata": {"harbor": self.name, **self.metadata},
            "config": self.config.model_dump(mode="json", exclude_defaults=True),
            "files": dict(self._packed(tests=verifier_image is None)),
        }  # fmt: skip
        if verifier_image is not None:
            fields["evaluator"] = {"image": verifier_image}
        used = {name: value for name, value in variables.items() if f"${{{name}" in str(fields["config"])}
        return fields | ({"variables": used} if used else {})

    def _packed(self, *, tests: bool) -> Iterator[tuple[str, Any]]:
        for name in _NAMED:
            if inside(self.path, self.path / name).is_file():
                yield name, _packed_file(self.path / name)
        loose = not (self.path / LOOSE / DOCKERFILE).exists()
        for folder in ("solution", "steps", *(["tests"] if tests else []), *([LOOSE.rstrip("/")] if loose else [])):
            for name in files_below(self.path, folder):
                yield name, _packed_file(self.path / name)


def read_folder(path: Path) -> TaskFolder:
    """Raises TaskError for a folder whose `task.toml` cannot be used."""
    try:
        if not inside(path, path / CONFIG).is_file():
            raise TaskError(f"{CONFIG} is no file")
        tables = tomllib.loads((path / CONFIG).read_text())
        config = HarborConfig.model_validate(tables)
    except OSError as error:
        raise TaskError(f"{path / CONFIG} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        listed = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise TaskError(f"{CONFIG}: {listed}") from None
    except ValueError as error:  # also a number with too many digits
        raise TaskError(f"{CONFIG} is no TOML: {error}") from None
    except RecursionError:
        raise TaskError(f"{CONFIG} has too many tables or arrays inside of one another: write fewer") from None
    package, metadata = tables.get("task"), tables.get("metadata")
    name = package.get("name") if isinstance(package, dict) else None
    return TaskFolder(path, str(name or path.name), config, _scalars(metadata if isinstance(metadata, dict) else {}))


def task_folders(folder: Path) -> list[Path]:
    """Return the task folders at or below a folder."""
    found: list[Path] = []
    for path in sorted(file.parent for file in folder.rglob(CONFIG)):
        if not any(path.is_relative_to(one) for one in found):
            found.append(path)
    return found


def files_below(top: Path, folder: str) -> Iterator[str]:
    """Yield the paths of the files in a folder below `top`. Links to files and folders of `top` are followed. Raises TaskError
    for one that leads out of it or in a circle."""
    waiting = [(top / folder, frozenset[Path]())]
    while waiting:
        path, above = waiting.pop()
        real = inside(top, path)
        if not path.is_dir():
            if real.is_file():
                yield path.relative_to(top).as_posix()
            continue
        if real in above:
            raise TaskError(f"{path.relative_to(top)} is a link that leads in a circle: delete it")
        waiting += [(one, above | {real}) for one in sorted(path.iterdir(), reverse=True)]


def inside(top: Path, path: Path) -> Path:
    """Return the real path of a file or a folder of `top`. Raises TaskError for one that is elsewhere."""
    name = path.relative_to(top)
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        real = path.resolve()
    except (OSError, RuntimeError) as error:
        raise TaskError(f"{name} cannot be read, or is a link that leads in a circle: {error}") from None
    if not real.is_relative_to(top.resolve()):
        raise TaskError(f"{name} is a link that leads out of the folder: put a copy of its content there")
    return real


def context_digest(context: Path) -> str:
    """Return a short name of the content of a folder: 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(context.rglob("*")):
        name, mode = path.relative_to(context).as_posix(), path.lstat().st_mode & 0o777
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        digest.update(f"{name}\0{mode}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def image_name(docker: str, folder: Path) -> str:
    """Return our name of an image that Docker calls so."""
    if docker.endswith(".sif"):
        return str((folder / docker).resolve())
    return docker if "://" in docker else f"docker://{docker}"


def _packed_file(path: Path) -> Any:
    try:
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise TaskError(f"{path} has {size} bytes, which no task can have: put large files into the image")
        content = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from None
    try:
        packed: dict[str, Any] = {"text": content.decode()}
    except UnicodeDecodeError:
        packed = {"base64": base64.b64encode(content).decode()}
    if os.access(path, os.X_OK):
        return {**packed, "executable": True}
    return packed.get("text", packed)


def _scalars(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a `[metadata]` table by which rollouts can be listed."""
    short = {
        k: v for k, v in metadata.items() if isinstance(v, bool | int | float | str) and len(str(v)) <= _METADATA_CHARS
    }
    return dict([*short.items()][:16])
