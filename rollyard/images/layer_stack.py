"""The unpacked layers of an image as the one root file system that they make, read-only.

A layer is a folder with what it adds to the layers below it. A character device with the number 0 in it is a whiteout: it
hides what the layers below have there. So the kernel's overlay and fuse-overlayfs show the same files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence

_MOST_LINKS = 40


class LayerStack:
    """Folders that nobody changes. Paths are relative, without `.` and `..`, and no symbolic link in them is followed."""

    def __init__(self, layers: Sequence[str | os.PathLike[str]]) -> None:
        """`layers`: the topmost first."""
        self._folders: dict[bytes, tuple[bytes, ...]] = {b"": tuple(map(os.fsencode, layers))}

    def find(self, path: bytes) -> bytes | None:
        """Return the file of this machine that the image shows at a path; None if it shows none."""
        above, _, name = path.rpartition(b"/")
        for folder in self.folders(above):
            real = folder + b"/" + name if name else folder
            if (info := _state(real)) is not None:
                return None if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0 else real
        return None

    def folders(self, path: bytes) -> tuple[bytes, ...]:
        """Return the folders of this machine that make up a folder of the image, the topmost first; none if it is none."""
        if (known := self._folders.get(path)) is not None:
            return known
        above, _, name = path.rpartition(b"/")
        found = []
        for folder in self.folders(above):
            real = folder + b"/" + name
            info = _state(real)
            if info is not None and not stat.S_ISDIR(info.st_mode):
                break
            if info is not None:
                found.append(real)
        self._folders[path] = tuple(found)
        return self._folders[path]

    def names(self, path: bytes) -> list[bytes]:
        """Return the names in a folder, sorted."""
        shown = dict[bytes, bool]()
        for folder in self.folders(path):
            with os.scandir(folder) as entries:
                for one in entries:
                    shown.setdefault(one.name, one.is_file(follow_symlinks=False) or one.is_symlink() or one.is_dir())
        return sorted(name for name, is_shown in shown.items() if is_shown)

    def walk(self, path: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the path and the place on this machine of all that is below a folder, each folder before what is in it."""
        for name in self.names(path):
            below = path + b"/" + name if path else name
            real = self.find(below)
            assert real is not None
            yield below, real
            if self.folders(below):
                yield from self.walk(below)

    def real_path(self, path: str) -> str:
        """Return a path without symbolic links, which are followed as if the image were the root. Parts that do not exist
        stay. Raises OSError for a loop of links."""
        real: list[str] = []
        left = [part for part in reversed(path.split("/")) if part]
        links = 0
        while left:
            part = left.pop()
            if part == ".":
                continue
            if part == "..":
                real = real[:-1]
                continue
            found = self.find(os.fsencode("/".join([*real, part])))
            if found is not None and os.path.islink(found):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.fsdecode(os.readlink(found))
                if target.startswith("/"):
                    real = []
                left += [piece for piece in reversed(target.split("/")) if piece]
            else:
                real.append(part)
        return "/".join(real)


def _state(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
