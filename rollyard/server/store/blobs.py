"""Blobs in append-only pack files. All blobs of one group commit share one fsync, before the rows that name them.

A row never names bytes that are not on disk. A crash between the two leaves bytes that no row names, which are
harmless. A pack belongs to one opening of the store, so no blob is ever appended after an incomplete one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from rollyard.core.errors import Unavailable
from rollyard.server.store.base import BlobRef

PACK_LIMIT = 1 << 30
"""Size in bytes after which the next batch begins a new pack."""
_PACK_NAME = re.compile(r"([0-9]{1,20})-[0-9]{1,20}\.pack")


class PackWriter:
    """Pack files for the writer thread: `add` collects, `sync` makes durable, then `keep` or `drop` follows."""

    def __init__(self, folder: Path, epoch: int, limit: int = PACK_LIMIT) -> None:
        self._folder = folder
        self._epoch = epoch
        self._limit = limit
        self._number = 0
        self._fd: int | None = None
        self._committed_size = 0
        self._added = 0
        self._waiting: list[bytes] = []

    @property
    def name(self) -> str:
        """Pack that the next blobs go to; those before it are complete."""
        return f"{self._epoch:08d}-{self._number:04d}.pack"

    def add(self, data: bytes) -> BlobRef:
        ref = BlobRef(self.name, self._committed_size + self._added, len(data), hashlib.sha256(data).hexdigest())
        self._waiting.append(data)
        self._added += len(data)
        return ref

    def mark(self) -> int:
        """Position to which `cut` goes back if the change that adds blobs is undone."""
        return len(self._waiting)

    def cut(self, mark: int) -> None:
        self._added -= sum(map(len, self._waiting[mark:]))
        del self._waiting[mark:]

    def sync(self) -> None:
        """Make all added blobs durable. Raises OSError; then `drop` must follow."""
        if not self._waiting:
            return
        if self._fd is None:
            self._fd = os.open(self._folder / self.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            _sync_folder(self._folder)
        position = self._committed_size
        for data in self._waiting:
            position += _write_at(self._fd, data, position)
        os.fdatasync(self._fd)

    def keep(self) -> None:
        """Keep the added blobs, after the commit of their rows."""
        self._committed_size += self._added
        self._added = 0
        self._waiting.clear()
        if self._committed_size >= self._limit:
            self._next_pack()

    def drop(self) -> None:
        """Remove the added blobs after a failed commit, and continue in a new pack."""
        self._added = 0
        self._waiting.clear()
        # Not in the same pack: after a failed fsync the kernel may mark pages as clean that did not reach the disk.
        self._next_pack(cut_at=self._committed_size)

    def _next_pack(self, cut_at: int | None = None) -> None:
        if self._fd is None:
            return
        fd, self._fd, self._committed_size = (
            self._fd,
            None,
            0,
        )  # first, because a failed close frees the descriptor too
        self._number += 1
        with contextlib.suppress(OSError):  # `sync` has saved all bytes of committed rows
            if cut_at is not None:
                os.ftruncate(fd, cut_at)
        with contextlib.suppress(OSError):
            os.close(fd)

    def close(self) -> None:
        self._next_pack()


def newest_epoch(folder: Path) -> int | None:
    """Epoch of the newest pack; None if there is no pack. Blocks; raises OSError."""
    found = [int(match[1]) for name in os.listdir(folder) if (match := _PACK_NAME.fullmatch(name))]
    return max(found, default=None)


def read_blob(folder: Path, ref: BlobRef) -> bytes:
    """Read the bytes of a reference and check them. Raises Unavailable if they are missing or damaged."""
    if not _PACK_NAME.fullmatch(ref.pack) or ref.offset < 0 or ref.length < 0:
        raise Unavailable(f"{ref.pack!r} is not a pack of this store")
    try:
        fd = os.open(folder / ref.pack, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"pack {ref.pack} cannot be read: {error.strerror}") from None
    with open(fd, "rb") as file:
        file.seek(ref.offset)
        data = file.read(ref.length)
    if len(data) != ref.length or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise Unavailable(f"the blob at {ref.offset} in pack {ref.pack} is damaged: its digest does not match")
    return data


def pack_size(folder: Path, pack: str) -> int:
    """Size in bytes; 0 for a pack that is gone. Raises OSError."""
    try:
        return (folder / pack).stat().st_size
    except FileNotFoundError:
        return 0


def delete_pack(folder: Path, pack: str) -> None:
    """Delete a pack, if it is there. Raises OSError."""
    (folder / pack).unlink(missing_ok=True)
    _sync_folder(folder)


def _write_at(fd: int, data: bytes, position: int) -> int:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view, position = view[written:], position + written
    return len(data)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
