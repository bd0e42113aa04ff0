"""Removal of a folder of any depth.

`shutil.rmtree` calls itself for each level. So a thousand nested folders, which every program can make, end it with a
RecursionError, and the folder stays.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def remove(path: Path) -> None:
    """Delete a file, a link or a folder; nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder, also if its owner may not read some folders below it. What the caller may not delete stays.

    Deeper folders are moved to the first level before they are emptied, so no path is ever long.
    """
    top, mark, count = os.fspath(folder), secrets.token_hex(8), 0
    waiting = list(_empty(top, None))
    while waiting:
        path, count = waiting.pop(), count + 1
        waiting += _empty(path, f"{top}/{mark}-{count}")
        with suppress(OSError):
            os.rmdir(path)
    with suppress(OSError):
        os.rmdir(top)


def _empty(folder: str, place: str | None) -> Iterator[str]:
    """Delete the files of a folder, move the folders in it to names that begin with `place`, and yield the new paths. None:
    the folders stay where they are."""
    with suppress(OSError):
        for number, entry in enumerate(list(os.scandir(folder))):
            with suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                path = entry.path if place is None else f"{place}-{number}"
                os.rename(entry.path, path)
                yield path
