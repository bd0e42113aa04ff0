"""A source of weights: a folder, possibly with a LoRA adapter, and the checksum of the files."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollyard.core.errors import Invalid
from rollyard.core.regular_file import open_regular

if TYPE_CHECKING:
    from rollyard.wire.engine import WeightsTarget  # the process that reads the files starts without pydantic

CHUNK = 8 << 20
PATTERNS = ("*.safetensors", "*.bin")
HOLES_FROM_BYTES = 1 << 30
"""Size from which a file is searched for holes. Smaller files are read in a moment."""


@dataclass(frozen=True)
class TargetFiles:
    """The fields of a WeightsTarget that decide which files are read."""

    version: str
    path: str | None
    adapter: str | None
    checksum: str | None


@dataclass(frozen=True)
class WeightsSource:
    """Weights, as their files were when Rollyard read them."""

    version: str
    checksum: str
    """Checksum of the adapter if there is one, else of the folder."""
    folder: Path
    adapter: Path | None = None

    def matches(self, order: WeightsTarget) -> bool:
        """Return whether these weights have the target's version, adapter or folder, and checksum. A target without a
        checksum permits any checksum."""
        if order.version != self.version or (order.adapter is None) != (self.adapter is None):
            return False
        if Path(order.adapter or order.path or "") != (self.adapter or self.folder):
            return False
        return order.checksum is None or order.checksum == self.checksum

    def mismatch_text(self, found: str) -> str:
        """Describe that the files have the checksum `found`, and not the checksum of these weights."""
        return f"ChecksumMismatch: {self.adapter or self.folder} has checksum {found}, but {self.version} has {self.checksum}"


def read_source(own: Path, order: TargetFiles | None) -> WeightsSource:
    """Read the weights of a target. Without a target, read the pool's own model in the folder `own`; its checksum is
    also its version.

    This function reads the files completely; `folder_reading.py` calls it in a process of its own. Raises Invalid like
    `folder_checksum`. Raises Invalid also if the target requires another checksum, or names no folder.
    """
    if order is None:
        checksum = folder_checksum(own)
        return WeightsSource(checksum, checksum, own)
    given = order.adapter or order.path
    if given is None:
        raise Invalid("WeightsUnavailable: the update names neither a folder nor an adapter")
    checksum = folder_checksum(Path(given))
    if order.checksum is not None and checksum != order.checksum:
        raise Invalid(f"ChecksumMismatch: {given} has checksum {checksum}, but the update expects {order.checksum}")
    if order.adapter is not None:
        return WeightsSource(order.version, checksum, own, Path(given))
    return WeightsSource(order.version, checksum, Path(given))


def folder_checksum(folder: Path) -> str:
    """Return the first 12 hex digits of the sha256 over the weight files' names, sizes and content. The folder's path
    has no influence.

    This function reads the files completely. Raises Invalid if the folder is missing, has no weights, or if one of its
    files cannot be read, is not a regular file, has mostly holes, or changes.
    """
    digest = hashlib.sha256()
    try:
        for file in weight_files(folder):
            _add(digest, file)
    except OSError as error:
        raise Invalid(f"ModelMissing: {error.filename or folder} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:12]


def weight_files(folder: Path) -> list[Path]:
    """Return a folder's weight files, sorted. Raises Invalid if the folder is missing or has no weights."""
    if not folder.is_dir():
        raise Invalid(f"ModelMissing: {folder} is not a folder on this node")
    files = sorted(file for pattern in PATTERNS for file in folder.glob(pattern))
    if not files:
        raise Invalid(f"ModelMissing: {folder} contains no weights ({', '.join(PATTERNS)})")
    return files


def _add(digest: hashlib._Hash, path: Path) -> None:
    with open_regular(path) as file:
        size = left = os.fstat(file.fileno()).st_size
        _refuse_holes(path, file.fileno(), size)
        digest.update(f"{path.name}\0{size}\0".encode())
        while chunk := file.read(min(CHUNK, left)):
            digest.update(chunk)
            left -= len(chunk)
        if left or file.read(1):
            raise Invalid(f"ModelMissing: {path} changed while it was read; an update needs a complete folder")


def _refuse_holes(path: Path, file: int, size: int) -> None:
    """Raise Invalid for a large file of which less than half was ever written: its copy has not ended, or it is no
    model. Reading its zeros would take as long as reading a real file of this size."""
    if size < HOLES_FROM_BYTES:
        return
    written, at = 0, 0
    with contextlib.suppress(OSError):  # ENXIO: no more data after `at`
        while at < size:
            at = os.lseek(file, at, os.SEEK_DATA)
            end = os.lseek(file, at, os.SEEK_HOLE)
            written, at = written + end - at, end
    os.lseek(file, 0, os.SEEK_SET)
    if 2 * written < size:
        raise Invalid(
            f"ModelMissing: {path} was not copied completely: only {written} of its {size} bytes were ever written"
        )
