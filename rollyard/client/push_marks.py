"""Marks of pushes that write a folder of weights. With them a later push deletes what a push left that died too early.

A push creates its mark, a locked file, before it writes. It deletes the mark when the server has stored the update. So a
mark without a lock belongs to a push that died, or whose update the server did not accept.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = ".push-"
OTHER_MACHINE_SECONDS = 86_400.0
"""Age from which the mark of another machine is used. On some shared file systems other machines do not see a lock."""


@dataclass(frozen=True, slots=True)
class PushMark:
    """Mark of a push. This process holds the lock until `end` or `close`."""

    path: Path
    descriptor: int
    names: Sequence[str]
    """Names that the push may give its folder, one after the other."""
    inode: int
    """Inode of the push's folder. A folder with another inode belongs to another push."""

    @classmethod
    def create(cls, pool: str, unfinished: Path, names: Sequence[str]) -> PushMark:
        """Mark a push to `pool`. `unfinished`: its new, empty folder, which later gets one of `names`. Blocks. If the file
        system has no locks, no process can lock the mark, so `marks_left` never returns it. Raises OSError."""
        path = unfinished.with_name(f"{MARK}{secrets.token_hex(8)}")
        hidden, inode = path.with_name(f".new{path.name}"), unfinished.stat().st_ino
        names = [unfinished.name, *names]
        content = {"pool": pool, "machine": socket.gethostname(), "names": names, "inode": inode}
        hidden.write_text(json.dumps(content))
        descriptor = os.open(hidden, os.O_RDWR | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden.rename(path)  # other pushes see the mark only with its lock and its content
        return cls(path, descriptor, names, inode)

    def end(self) -> None:
        """Delete the mark: the folder is known to the server, or it is deleted."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock. The next push decides about the folder."""
        os.close(self.descriptor)

    def delete_folder(self, known: Iterable[str]) -> None:
        """Delete the push's folder, unless it is one of the paths in `known`; then delete the mark. Blocks."""
        folder = next((f for name in self.names if _inode(f := self.path.with_name(name)) == self.inode), None)
        if folder is not None and self.inode not in map(_inode, map(Path, known)):
            shutil.rmtree(folder, ignore_errors=True)
        self.end()


def marks_left(folder: Path, pool: str) -> list[PushMark]:
    """Return the marks of pushes to `pool` that no process holds any more, each locked by this process. Blocks."""
    found = []
    for path in folder.glob(f"{MARK}*"):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            mark = _locked(path, descriptor)
            if mark is not None and mark["pool"] == pool:
                found.append(PushMark(path, descriptor, mark["names"], mark["inode"]))
            else:
                os.close(descriptor)
    return found


def _locked(path: Path, descriptor: int) -> dict[str, Any] | None:
    """Lock a mark and return its content; None if its push may be alive, or has just ended."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mark: dict[str, Any] = json.loads(path.read_bytes())
        old = time.time() - path.stat().st_mtime > OTHER_MACHINE_SECONDS
    except (OSError, ValueError):
        return None
    return mark if old or mark["machine"] == socket.gethostname() else None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
