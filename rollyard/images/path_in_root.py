"""The place that a path means in a root file system that lies in a folder of this machine."""

from __future__ import annotations

import errno
import os

_MOST_LINKS = 40


def path_in_root(root: str, path: str) -> str:
    """Return a path below `root` without symbolic links in it, relative to `root`. Parts that do not exist stay. Raises
    OSError for a loop of links."""
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
        below = os.path.join(root, *real, part)
        if os.path.islink(below):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(below)
            if target.startswith("/"):
                real = []
            left += [piece for piece in reversed(target.split("/")) if piece]
        else:
            real.append(part)
    return "/".join(real)
