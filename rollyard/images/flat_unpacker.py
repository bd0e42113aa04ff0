"""Unpacks a flat layer (`flat_layer.py`) with several processes.

Folders are made first, then whiteouts and files, then further names of files, and symbolic links last. Each name is in
folders of the list, which are folders before anything is put into them. So nothing is written through a symbolic link, and no
name leads out of the root, whatever the list of files says.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rollyard.host.removed_folder import remove
from rollyard.images.flat_layer import BrokenFlatLayer, FlatIndex, FlatList, read_frame
from rollyard.images.layer_unpacker import white_out

_BLOCK = 4096
"""Least number of bytes that a file counts, and its unit."""
_MOST_DEPTH = 200
"""Greatest depth of folders. Python's functions on trees of folders are recursive."""
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


_Piece = tuple[bytes, int, int, int, int, int]
"""Part of a file that lies in one frame: name, mode and time; start and end in the frame; place in the file."""


class FlatUnpacker:
    """Unpacks into the working folder, which is empty, or has links to all files of the layers below. The umask must be 0."""

    def __init__(self, file: int, index: FlatIndex, files: FlatList) -> None:
        """Raises BrokenFlatLayer for a list that no layer has."""
        self._file = file
        self._index = index
        self._files = files
        self._check_names()
        small = len(files.folders) + len(files.links)
        self.bytes = sum(-(-max(1, size) // _BLOCK) * _BLOCK for _, _, _, size, _ in files.files) + _BLOCK * small
        """Bytes on disk."""
        self.names = small + len(files.files) + len(files.names) + len(files.whiteouts)
        """Number of files, folders and whiteouts."""
        self._places, at = [], 0
        for frame in index.frames:
            self._places.append(at)
            at += frame.length
        self._pieces, self._long = self._plan()

    def clear(self) -> None:
        """Delete the links to files of the layers below that this layer replaces or removes."""
        for name, _, _ in sorted(self._files.folders):
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.lstat(_raw(name)).st_mode):
                    os.unlink(_raw(name))
        for name in self._not_folders():
            remove(Path(os.fsdecode(_raw(name))))

    def make_folders(self) -> None:
        for name, mode, _ in self._files.folders:
            try:
                os.mkdir(_raw(name), mode & 0o1777 | 0o700)
            except FileExistsError:
                os.chmod(_raw(name), mode & 0o1777 | 0o700)

    def make_whiteouts(self) -> None:
        """Raises NoWhiteouts and OSError."""
        for name in self._files.whiteouts:
            white_out(_raw(name))

    def make_files(self, part: int, parts: int) -> None:
        """Make the files of each `parts`th frame, from number `part` on. Each process calls this once, after
        `make_folders`. Raises BrokenFlatLayer and OSError."""
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

    def _not_folders(self) -> list[str]:
        """Return the names of all that is no folder."""
        files = [name for name, *_ in self._files.files]
        links = [name for name, *_ in self._files.links]
        return [*files, *links, *(name for name, _ in self._files.names), *self._files.whiteouts]

    def _check_names(self) -> None:
        folders, files = {name for name, *_ in self._files.folders}, {name for name, *_ in self._files.files}
        others = self._not_folders()
        seen = folders | set(others)
        if len(seen) != len(self._files.folders) + len(others):
            raise BrokenFlatLayer("it has a name twice")
        if not files.issuperset(first for _, first in self._files.names):
            raise BrokenFlatLayer("it has a further name for no file")
        for name in seen:
            if name.count("/") > _MOST_DEPTH:
                raise BrokenFlatLayer(f"it has folders nested more than {_MOST_DEPTH} deep")
            if "/" in name and name.rpartition("/")[0] not in folders:
                raise BrokenFlatLayer("it has a file without its folder")
            if name.rpartition("/")[2] in ("", ".", "..") or "\0" in name:
                raise BrokenFlatLayer("it has a file name that leads elsewhere")

    def _plan(self) -> tuple[Sequence[Sequence[_Piece]], Sequence[tuple[bytes, int]]]:
        """Return the pieces of each frame, and the files that have several, with their times."""
        pieces: list[list[_Piece]] = [[] for _ in self._index.frames]
        long, number, start, sizes = [], 0, 0, [frame.size for frame in self._index.frames]
        for name, mode, mtime, size, at in self._files.files:
            raw, mode, done = _raw(name), mode & 0o777 | 0o600, 0
            if at < start or size < 0:
                raise BrokenFlatLayer("it has a file at an impossible place")
            while True:
                while number < len(sizes) and at + done >= start + sizes[number]:
                    start += sizes[number]
                    number += 1
                if number == len(sizes):
                    raise BrokenFlatLayer("it has a file at an impossible place")
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
