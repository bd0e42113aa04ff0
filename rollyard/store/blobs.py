"""Blobs in append-only pack files. All blobs of one group commit share one fsync. The rows that name the blobs are
committed after this fsync.

So a row never names bytes that are not on disk. A crash before the commit leaves bytes that no row names. These bytes do
no harm. Each opening of the store begins new packs, so a blob is never appended after an incomplete blob.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from rollyard.core.errors import Damaged, Unavailable
from rollyard.store.base import BlobRef

PACK_LIMIT = 1 << 30
"""After a pack has reached this size in bytes, the next group commit begins a new pack."""
_PACK_NAME = re.compile(r"([0-9]{1,20})-[0-9]{1,20}\.pack")


class PackWriter:
    """Pack files, for the writer thread. `add` collects blobs and `sync` writes them; then call `keep` or `drop`."""

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
        """Name of the pack to which the next blobs are written. Earlier packs are complete."""
        return f"{self._epoch:08d}-{self._number:04d}.pack"

    def add(self, data: bytes) -> BlobRef:
        ref = BlobRef(self.name, self._committed_size + self._added, len(data), hashlib.sha256(data).hexdigest())
        self._waiting.append(data)
        self._added += len(data)
        return ref

    def mark(self) -> int:
        """Return the present position. To undo a change, call `cut` with the position at which the change began. `cut`
        removes the later blobs."""
        return len(self._waiting)

    def cut(self, mark: int) -> None:
        self._added -= sum(map(len, self._waiting[mark:]))
        del self._waiting[mark:]

    def sync(self) -> None:
        """Write all added blobs to the disk. Raises OSError; after an error call `drop`."""
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
        """Keep the added blobs, because their rows are committed."""
        self._committed_size += self._added
        self._added = 0
        self._waiting.clear()
        if self._committed_size >= self._limit:
            self._next_pack()

    def drop(self) -> None:
        """Remove the added blobs after a failed commit, and continue in a new pack."""
        self._added = 0
        self._waiting.clear()
        # The same pack is not used again: after a failed fsync the kernel may treat unwritten pages as written.
        self._next_pack(cut_at=self._committed_size)

    def _next_pack(self, cut_at: int | None = None) -> None:
        if self._fd is None:
            return
        fd, self._fd, self._committed_size = (
            self._fd,
            None,
            0,
        )  # before the close, because a failed close frees the descriptor too
        self._number += 1
        with contextlib.suppress(OSError):  # `sync` has saved all bytes of committed rows
            if cut_at is not None:
                os.ftruncate(fd, cut_at)
        with contextlib.suppress(OSError):
            os.close(fd)

    def close(self) -> None:
        self._next_pack()


def newest_epoch(folder: Path) -> int | None:
    """Return the epoch of the newest pack; None if there is no pack. Blocks. Raises OSError."""
    found = [int(match[1]) for name in os.listdir(folder) if (match := _PACK_NAME.fullmatch(name))]
    return max(found, default=None)


def read_blob(folder: Path, ref: BlobRef) -> bytes:
    """Read a blob and check its digest. Raises Unavailable if the blob is missing or if a read fails, and Damaged."""
    if not _PACK_NAME.fullmatch(ref.pack) or ref.offset < 0 or ref.length < 0:
        raise Unavailable(f"{ref.pack!r} is not a pack of this store")
    try:
        fd = os.open(folder / ref.pack, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            file.seek(ref.offset)
            data = file.read(ref.length)
    except OSError as error:
        raise Unavailable(f"pack {ref.pack} cannot be read: {error.strerror}") from None
    if len(data) != ref.length or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise Damaged(f"the blob at {ref.offset} in pack {ref.pack} is damaged: its digest does not match")
    return data


def pack_size(folder: Path, pack: str) -> int:
    """Return the size of a pack in bytes; 0 if the file does not exist. Raises OSError."""
    try:
        return (folder / pack).stat().st_size
    except FileNotFoundError:
        return 0


def delete_pack(folder: Path, pack: str) -> None:
    """Delete a pack, if the file exists. Raises OSError."""
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
