"""The size of a folder with all that is in it."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path


def bytes_on_disk(folder: Path, without: Set[int] = frozenset()) -> int:
    """Return the number of bytes. A file with several names counts once; `without`: inodes that do not count."""
    total, seen = 0, set(without)
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            info = os.lstat(os.path.join(above, name))
            if info.st_nlink == 1 or info.st_ino not in seen:
                total += info.st_blocks * 512
                seen.add(info.st_ino)
    return total


def count_names(folder: Path) -> int:
    """Return the number of files and folders below a folder."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))
