"""Files for one user only: mode 0600 from creation, replaced as a whole, on disk before the call returns."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_secret(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Replace `path` atomically; a crash leaves the old file or the new one.

    A file that can be created again need not be `durable`. Then it is written faster, but a power cut may lose it.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    if not durable:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
