"""Files that an engine makes in /dev/shm: which ones are the engine's, and their removal after its end.

An engine that is killed leaves them behind. Such a file holds memory until the node restarts, and the next engine may
not get enough. A file is removed only if all of this holds; a kept file of the engine is reported:

- It belongs to this user, and no other user may open it.
- It appeared after the engine's start, and a process of the engine had it open or mapped.
- Its name is one that vLLM or its libraries make up (NAMES). Another program may have made a file with another name for
  the engine, such as a trainer that hands over weights.
- No living process has it open or mapped. A process of this user that cannot be examined counts as a user of the file.

Imports little more than the standard library, because the owner of the engine's processes is a small program.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from rollyard.core.process_tree import boot_id

FOLDER = Path("/dev/shm")
NAMES = ("psm_", "sem.mp-", "torch_", "nccl-", "vllm_", "VLLM_", "cuda.shm.")
"""Prefixes: Python's shared memory and semaphores, torch, NCCL, vLLM, and the CUDA driver."""
RECORD = "shared-memory.json"
"""File in the scratch folder. With it, the next process on the node removes what a killed process could not."""
LOOKS = 30
"""Number of times that the engine's processes are searched for a new file."""


class MemoryFile(NamedTuple):
    name: str
    inode: int


class EngineFiles:
    """Files that appeared in /dev/shm since this object was made, and that the engine's processes use."""

    def __init__(self, record: Path | None) -> None:
        """`record`: file in which the engine's removable files are kept for the next process on the node."""
        self._record = record
        self._before = frozenset(_files())
        self._looks: dict[MemoryFile, int] = {}
        """Number of searches for each new file that no process of the engine is known to use."""
        self._changed_at = 0
        """Time of the folder's last change that was seen, in nanoseconds."""
        self.found: set[MemoryFile] = set()

    def look(self, processes: Callable[[], Iterable[int]]) -> None:
        """Search the engine's processes for the new files, if there are any."""
        changed_at = _changed_at()
        if changed_at == self._changed_at and not any(looks < LOOKS for looks in self._looks.values()):
            return
        self._changed_at = changed_at
        new = [file for file in _files() if file not in self._before and file not in self.found]
        self._looks = {file: self._looks.get(file, 0) + 1 for file in new}
        asked = {file for file, looks in self._looks.items() if looks <= LOOKS}
        if not asked:
            return
        used = {inode for pid in processes() for inode in _used_inodes(pid) or ()}
        if proven := {file for file in asked if file.inode in used}:
            self.found |= proven
            self._write_record()

    def remove(self) -> tuple[list[str], list[str]]:
        """Remove the engine's files. Return the names of the removed files and of those that are kept."""
        return remove_unused(self.found)

    def _write_record(self) -> None:
        if self._record is None:
            return
        files = sorted(file for file in self.found if file.name.startswith(NAMES))
        text = json.dumps({"boot": boot_id(), "files": files})
        with contextlib.suppress(OSError):  # the owner itself still removes the files
            partial = self._record.with_suffix(".new")
            partial.write_text(text)
            partial.rename(self._record)


def remove_recorded(folder: Path) -> tuple[list[str], list[str]]:
    """Remove the files that the record in a scratch folder names. Return the names of the removed files and of those
    that are kept."""
    try:
        record = json.loads((folder / RECORD).read_text())
        if record["boot"] != boot_id():
            return [], []
        return remove_unused(MemoryFile(str(name), int(inode)) for name, inode in record["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return [], []


def remove_unused(files: Iterable[MemoryFile]) -> tuple[list[str], list[str]]:
    """Remove those of the engine's files that are certain to be its own. Return the names of the removed files and of
    those that are kept."""
    left = set(files) & set(_files())
    certain = {file for file in left if file.name.startswith(NAMES) and _is_private(file)}
    if certain:
        used, unknown = _used_by_anyone()
        certain = set() if unknown else {file for file in certain if file.inode not in used}
    removed = []
    for file in sorted(certain):
        with contextlib.suppress(OSError):
            (FOLDER / file.name).unlink()
            removed.append(file.name)
    return removed, sorted(file.name for file in left if file.name not in removed)


def _files() -> list[MemoryFile]:
    """Return the regular files of this user in /dev/shm."""
    found = []
    with contextlib.suppress(OSError), os.scandir(FOLDER) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    found.append(MemoryFile(entry.name, entry.inode()))
    return found


def _changed_at() -> int:
    """Return the time of the last change of the folder's list of files; 0 without the folder."""
    try:
        return FOLDER.stat().st_mtime_ns
    except OSError:
        return 0


def _is_private(file: MemoryFile) -> bool:
    try:
        return (FOLDER / file.name).lstat().st_mode & 0o077 == 0
    except OSError:
        return False


def _used_by_anyone() -> tuple[set[int], bool]:
    """Return the inodes of /dev/shm that some process uses, and whether a process of this user cannot be examined."""
    used: set[int] = set()
    unknown = False
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            inodes = _used_inodes(int(entry))
            if inodes is not None:
                used |= inodes
            elif entry != "1":  # init may have more capabilities than root has here; it uses no file of an engine
                with contextlib.suppress(OSError):
                    unknown = unknown or os.stat(f"/proc/{entry}").st_uid == os.getuid()
    return used, unknown


def _used_inodes(pid: int) -> set[int] | None:
    """Return the inodes of /dev/shm that a process has open or mapped; None if this user may not know."""
    found = set()
    try:
        device = FOLDER.stat().st_dev
        mark = f"{os.major(device):02x}:{os.minor(device):02x}"
        with open(f"/proc/{pid}/maps", errors="replace") as maps:
            for line in maps:
                if len(fields := line.split(None, 5)) > 4 and fields[3] == mark:
                    found.add(int(fields[4]))
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(f"/proc/{pid}/fd/{descriptor}")
                if status.st_dev == device:
                    found.add(status.st_ino)
    except PermissionError:
        return None
    except OSError:  # the process has ended
        return found
    return found
