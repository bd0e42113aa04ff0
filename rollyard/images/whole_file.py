"""Small files that are complete or absent, whoever writes and reads them at the same time."""

from __future__ import annotations

import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write or replace a file. Raises OSError, and leaves nothing then."""
    growing = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        growing.write_bytes(data)
        growing.rename(path)
    except BaseException:
        growing.unlink(missing_ok=True)
        raise
