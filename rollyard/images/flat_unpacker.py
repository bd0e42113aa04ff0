"""Unpacks a flat image (`flat_image.py`) with several processes.

Folders are made first, then files, then further names of files, and symbolic links last. So no symbolic link exists while
anything is written, and no name leads out of the root, whatever the list of files says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rollyard.images.flat_image import BrokenFlatImage, FlatIndex, FlatList, read_frame

_BLOCK = 4096
"""Least number of bytes that a file counts, and its unit."""
_MOST_DEPTH = 200
"""Greatest depth of folders. Python's functions on trees of folders are recursive."""
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


_Piece = tuple[bytes, int, int, int, int, int]
"""Part of a file that lies in one frame: name, mode and time; start and end in the frame; place in the file."""


class FlatUnpacker:
    """Unpacks into the working folder, which is empty. The umask must be 0."""

    def __init__(self, file: int, index: FlatIndex, files: FlatList) -> None:
        """Raises BrokenFlatImage for a list that no image has."""
        self._file = file
        self._index = index
        self._files = files
        self._check_names()
        self.bytes = sum(-(-max(1, size) // _BLOCK) * _BLOCK for _, _, _, size, _ in files.files) + _BLOCK * (
            len(files.folders) + len(files.links)
        )
        """Bytes on disk."""
        self._places, at = [], 0
        for frame in index.frames:
            self._places.append(at)
            at += frame.length
        self._pieces, self._long = self._plan()

    def make_folders(self) -> None:
        for name, mode, _ in self._files.folders:
            os.mkdir(_raw(name), mode & 0o1777 | 0o700)

    def make_files(self, part: int, parts: int) -> None:
        """Make the files of each `parts`th frame, from number `part` on. Each process calls this once, after
        `make_folders`. Raises BrokenFlatImage and OSError."""
        for number in range(part, len(self._index.frames), parts):
            data = memoryview(read_frame(self._file, self._places[number], self._index.frames[number]))
            for name, mode, mtime, start, end, at in self._pieces[number]:
                file = os.open(name, _FILE, mode)
                try:
                    while start < end:
                        written = os.pwrite(file, data[start:end], at)
                        start += written
                        at += written
                    os.utime(file, ns=(mtime, mtime))
                finally:
                    os.close(file)

    def finish(self) -> None:
        """Make the links, and set the times that later work has changed."""
        for raw, mtime in self._long:
            os.utime(raw, ns=(mtime, mtime))
        for name, first in self._files.names:
            os.link(_raw(first), _raw(name), follow_symlinks=False)
        for name, target, mtime in self._files.links:
            os.symlink(_raw(target), _raw(name))
            os.utime(_raw(name), ns=(mtime, mtime), follow_symlinks=False)
        for name, _, mtime in self._files.folders:
            os.utime(_raw(name), ns=(mtime, mtime), follow_symlinks=False)

    def _check_names(self) -> None:
        folders, files = {name for name, *_ in self._files.folders}, {name for name, *_ in self._files.files}
        new = [*(name for name, *_ in self._files.links), *(name for name, _ in self._files.names)]
        seen = folders | files | set(new)
        if len(seen) != len(self._files.folders) + len(self._files.files) + len(new):
            raise BrokenFlatImage("it has a name twice")
        if not files.issuperset(first for _, first in self._files.names):
            raise BrokenFlatImage("it has a further name for no file")
        for name in seen:
            if name.count("/") > _MOST_DEPTH:
                raise BrokenFlatImage(f"it has folders nested more than {_MOST_DEPTH} deep")
            if "/" in name and name.rpartition("/")[0] not in folders:
                raise BrokenFlatImage("it has a file without its folder")
            if name.rpartition("/")[2] in ("", ".", "..") or "\0" in name:
                raise BrokenFlatImage("it has a file name that leads elsewhere")

    def _plan(self) -> tuple[Sequence[Sequence[_Piece]], Sequence[tuple[bytes, int]]]:
        """Return the pieces of each frame, and the files that have several, with their times."""
        pieces: list[list[_Piece]] = [[] for _ in self._index.frames]
        long, number, start, sizes = [], 0, 0, [frame.size for frame in self._index.frames]
        for name, mode, mtime, size, at in self._files.files:
            raw, mode, done = _raw(name), mode & 0o777 | 0o600, 0
            if at < start or size < 0:
                raise BrokenFlatImage("it has a file at an impossible place")
            while True:
                while number < len(sizes) and at + done >= start + sizes[number]:
                    start += sizes[number]
                    number += 1
                if number == len(sizes):
                    raise BrokenFlatImage("it has a file at an impossible place")
                begin = at + done - start
                end = min(begin + size - done, sizes[number])
                pieces[number].append((raw, mode, mtime, begin, end, done))
                done += end - begin
                if done == size:
                    break
            if end - begin != size:
                long.append((raw, mtime))
        return pieces, long


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
