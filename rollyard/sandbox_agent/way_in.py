"""The folders through which the sandbox agent reaches /proc and its own files, and the mounts of the sandbox.

A task that owns the folders can close or rename them. Nobody outside of a sandbox can do either. Closed ones are opened
again. No task can change a mount, or delete our own files.
"""

from __future__ import annotations

import os

_OWN = "/opt/rollyard"
_PLACES = tuple(place for place in ("/proc/self", f"{_OWN}/lib") if os.path.exists(place))
_ABOVE = ("/", "/opt")
_ENTER = 0o500
_opened: dict[str, int] = {}
"""Folder -> descriptor by which it is reached wherever it is moved."""


def remember() -> None:
    """Open the folders for later, before any task runs."""
    for folder in (_OWN, "/proc"):
        try:
            _opened[folder] = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        except OSError:  # this process runs outside of a sandbox
            pass


def keep_open() -> None:
    """Open the folders again if the task has closed them."""
    if _reaches():
        return
    for folder in _ABOVE:
        try:
            os.chmod(folder, os.stat(folder).st_mode & 0o7777 | _ENTER)
        except OSError:
            pass


def is_lost() -> bool:
    """Return whether it is certain that the task has taken away the way to this process's own files."""
    keep_open()
    return not _reaches() and _is_whole()


def of_mounts() -> dict[str, bool]:
    """Return what a reply says of the mounts: nothing, as long as the root can be written."""
    return {"read_only": True} if os.statvfs("/").f_flag & os.ST_RDONLY else {}


def _reaches() -> bool:
    try:
        for place in _PLACES:
            os.stat(place)
    except OSError:
        return False
    return True


def _is_whole() -> bool:
    """Whether our own files are there, and mounted somewhere in the sandbox."""
    try:
        os.stat("lib", dir_fd=_opened[_OWN])
        about = _read_proc(f"self/fdinfo/{_opened[_OWN]}").split()
        mount = about[about.index("mnt_id:") + 1]
        return any(line.split(" ", 1)[0] == mount for line in _read_proc("self/mountinfo").splitlines())
    except (OSError, ValueError, KeyError):
        return False


def _read_proc(path: str) -> str:
    with open(os.open(path, os.O_RDONLY, dir_fd=_opened["/proc"])) as file:
        return file.read()
