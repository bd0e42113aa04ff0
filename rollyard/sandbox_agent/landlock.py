"""Limits on where a process can write, set by the process itself for good: landlock(7)."""

from __future__ import annotations

import os
import struct

from rollyard.sandbox_agent.process_control import prctl, system_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_WRITE_FILE = 1 << 1
_CHANGES = _WRITE_FILE | 0x1FF << 4
"""Writing to files, and removing and making files and folders of each type."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_SCOPES = 0b11
"""Signals to processes, and connections to abstract sockets, beyond those that this process starts."""


def writes_within(folders: Iterable[str]) -> int | None:
    """Return rules for `confine_writes`, as a file: files change in `folders` alone, and devices may be written to. Reading
    stays as it is. None: the kernel has no landlock."""
    try:
        version = system_call(_CREATE_RULESET, 0, 0, _VERSION)
    except OSError:
        return None
    handled = _CHANGES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("QQQ", handled, 0, _SCOPES)
    ruleset = system_call(_CREATE_RULESET, attributes[: 24 if version >= 6 else 8], 24 if version >= 6 else 8, 0)
    for folder, allowed in (("/dev", _WRITE_FILE), *((one, handled) for one in folders)):
        fd = os.open(folder, os.O_PATH)
        system_call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, fd), 0)
        os.close(fd)
    return ruleset


def confine_writes(rules: int) -> None:
    """Hold this process, and those that it starts, to the rules."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    system_call(_RESTRICT_SELF, rules, 0)
