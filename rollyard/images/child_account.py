"""First steps of a process that unpacks images: it becomes the account of the sandboxes, and ends with the node agent."""

from __future__ import annotations

import os
import resource

from rollyard.core.process_tree import die_with


def become_sandbox_account(uid: int, gid: int, parent: int) -> None:
    """`parent`: the process with which this one ends."""
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    die_with(parent)  # now, because a change of the user cancels it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0)
