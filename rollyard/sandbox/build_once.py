"""Folders that are built once on a node and then shared. A folder is complete or absent, even if its builder dies."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from rollyard.core.errors import SandboxStartFailed


def build_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return `folder`. If it is missing, `fill` fills a new folder, which is then renamed. Other callers wait.

    Raises SandboxStartFailed if the disk is full or a file cannot be read or written, and the errors of `fill`.
    """
    try:
        return folder if folder.is_dir() else _build(folder, fill)
    except OSError as error:
        why = f"{error.strerror} ({error.filename})" if error.filename and error.strerror else str(error)
        raise SandboxStartFailed(f"{folder} cannot be made: {why}") from error


def _build(folder: Path, fill: Callable[[Path], None]) -> Path:
    if not folder.parent.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(0o755)  # regardless of the umask: sandboxes may run as another user
    with open(folder.with_name(f".{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        growing = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(growing, ignore_errors=True)
        growing.mkdir()
        growing.chmod(0o755)
        try:
            fill(growing)
            os.rename(growing, folder)
        finally:
            shutil.rmtree(growing, ignore_errors=True)
    return folder
