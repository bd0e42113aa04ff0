"""What weights a folder holds, as a short name: two folders with the same weights have the same version."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rollyard.errors import Invalid

CHUNK = 8 << 20
PATTERNS = ("*.safetensors", "*.bin")


def weights_version(folder: Path) -> str:
    """The first 12 hex digits of the sha256 over the weight files' names and content. Blocks: call it in a thread.

    Raises Invalid when the folder is missing or holds no weights.
    """
    if not folder.is_dir():
        raise Invalid(f"ModelMissing: {folder} is no folder on this node")
    files = sorted(file for pattern in PATTERNS for file in folder.glob(pattern))
    if not files:
        raise Invalid(f"ModelMissing: {folder} holds no weights ({', '.join(PATTERNS)})")
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()[:12]
