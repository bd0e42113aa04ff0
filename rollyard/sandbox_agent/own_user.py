"""The user that programs in the sandbox are: the one that the image names, else root.

Towards the machine they are the job's user in any case. A user namespace of the sandbox agent's own shows this one user under
another number. As root a program has the usual rights over files, and over nothing else: the other namespaces of the sandbox
belong to the user namespace above.

A task still owns none of the files in /proc that tell of process 1. Linux gives these files, of a process that may not be
traced, to the root of the user namespace in which the process's program was started, and there the runtimes have no root.
"""

from __future__ import annotations

import _ctypes
import os
import struct

from rollyard.sandbox_agent.process_control import prctl

_CLONE_NEWUSER = 0x10000000
_PR_CAPBSET_DROP = 24
_OF_ROOT = (0, 1, 3, 4, 5, 6, 7, 8, 31)
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, SETFCAP (linux/capability.h)."""
_VERSION_3 = 0x20080522
_MOST_BYTES = 1 << 20
_LIBC = _ctypes.dlopen("libc.so.6", os.RTLD_NOW)


class User:
    """A user as /etc/passwd describes it. A user who is not there has no name and no home."""

    def __init__(self, uid: int, gid: int, name: str = "", home: str = "") -> None:
        self.uid, self.gid, self.name, self.home = uid, gid, name, home


def find_user(wanted: str) -> User:
    """Return the user of an image's USER: a name or number, and after a colon a group. Raises ValueError for an unknown
    name."""
    name, _, its_group = wanted.partition(":")
    line = _line("/etc/passwd", name, fields=7)
    if line is None and not name.isdecimal():
        raise ValueError(f"the image names the user {name!r}, who is not in its /etc/passwd")
    user = User(int(name), 0) if line is None else User(int(line[2]), int(line[3]), line[0], line[5])
    if its_group:
        found = _line("/etc/group", its_group, fields=4)
        if found is None and not its_group.isdecimal():
            raise ValueError(f"the image names the group {its_group!r}, which is not in its /etc/group")
        user.gid = int(its_group if found is None else found[2])
    return user


def _line(file: str, wanted: str, fields: int) -> list[str] | None:
    """Return the fields of the line with this name, else of the line with this number."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            text = opened.read(_MOST_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    lines = [line.split(":") for line in text.split("\n")]
    lines = [line for line in lines if len(line) >= fields and all(part.isdecimal() for part in line[2 : fields - 3])]
    return next((line for field in (0, 2) for line in lines if line[field] == wanted), None)


def become(user: User) -> None:
    """Let this process and its children be the user. This process must still be traceable. Raises OSError."""
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", _CLONE_NEWUSER)
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{user.uid} {uid} 1"),
        ("gid_map", f"{user.gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    kept = _OF_ROOT if user.uid == 0 else ()
    capability = 0
    while capability in kept or _drop(capability):
        capability += 1
    mask = sum(1 << number for number in kept)
    head, sets = struct.pack("II", _VERSION_3, 0), struct.pack("6I", mask, mask, 0, 0, 0, 0)
    _call("capset", head, sets)


def _drop(capability: int) -> bool:
    """Drop a capability for this process and its children. Return False if the kernel has none with this number."""
    try:
        prctl(_PR_CAPBSET_DROP, capability)
    except OSError:
        return False
    return True


def _call(name: str, *arguments: int | bytes) -> None:
    if _ctypes.call_function(_ctypes.dlsym(_LIBC, name), arguments):
        raise OSError(f"{name} failed")
