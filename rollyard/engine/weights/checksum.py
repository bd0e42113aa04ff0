"""A short name for a folder's weights: two folders with the same weights have the same version."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from rollyard.core.errors import Invalid

CHUNK = 8 << 20
PATTERNS = ("*.safetensors", "*.bin")


def weights_version(folder: Path, stopping: Callable[[], bool] = lambda: False) -> str:
    """Return the first 12 hex digits of the sha256 over the weight files' names, sizes and content.

    It reads the files whole and blocks: call it in a thread; it stops early when `stopping` returns True. Raises
    Invalid when the folder is missing, cannot be read, or holds no weights.
    """
    if not folder.is_dir():
        raise Invalid(f"ModelMissing: {folder} is not a folder on this node")
    files = sorted(file for pattern in PATTERNS for file in folder.glob(pattern))
    if not files:
        raise Invalid(f"ModelMissing: {folder} contains no weights ({', '.join(PATTERNS)})")
    digest = hashlib.sha256()
    try:
        for file in files:
            _add(digest, file, stopping)
    except OSError as error:
        raise Invalid(f"ModelMissing: {error.filename or folder} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:12]


def _add(digest: hashlib._Hash, file: Path, stopping: Callable[[], bool]) -> None:
    with file.open("rb") as stream:
        digest.update(f"{file.name}\0{os.fstat(stream.fileno()).st_size}\0".encode())
        while chunk := stream.read(CHUNK):
            if stopping():
                raise Invalid("Stopped: the weights were not read completely")
            digest.update(chunk)
