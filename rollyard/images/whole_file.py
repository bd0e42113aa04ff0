"""Files that are complete or absent, whoever writes and reads them at the same time."""

from __future__ import annotations

import os
import secrets
import shutil
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


def copy_whole(source: Path, path: Path) -> None:
    """Give a file that nobody changes a further name, or copy it to another disk. Raises OSError, and leaves nothing then."""
    growing = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            os.link(source, growing)
        except OSError:
            with open(source, "rb") as read, open(growing, "xb") as written:
                shutil.copyfileobj(read, written, 1 << 20)
                written.flush()
                os.fsync(written.fileno())
        growing.rename(path)
    finally:
        growing.unlink(missing_ok=True)  # two names of one file stay two when one is renamed to the other
