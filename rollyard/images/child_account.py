"""First steps of a process that unpacks images: it becomes the account of the sandboxes, and ends with the node agent."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def become_sandbox_account(uid: int, gid: int, parent: int) -> None:
    """`parent`: the process with which this one ends."""
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    die_with(parent)  # now, because a change of the user cancels it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. It also holds for a program that takes the process over."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
