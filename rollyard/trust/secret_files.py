"""Files that only their owner can read. Each file has the mode 0600 from its creation."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_secret(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Replace `path` atomically: after a crash it has the whole old content or the whole new content.

    With `durable` the data is on disk before the call returns. Without it the call is faster, but a power cut may lose
    the file.
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
