"""Limits on the mounts of a sandbox, which a short-lived process sets."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from rollyard.node.memory_guard.__main__ import Watched
from rollyard.node.memory_guard.sandbox_entry import MountLimits

SANDBOX = ["unshare", "--user", "--map-root-user", "--mount", "--net", "sh", "-c"]
SIZE = 3 << 20


def test_a_limit_is_set_although_the_first_fork_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    argv, fork = [*SANDBOX, "mount -t tmpfs none /mnt; echo mounted; read end"], os.fork
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"mounted\n"
        watched = Watched("one", agent.pid, os.pidfd_open(agent.pid), 1 << 30, MountLimits(SIZE, 100, 10))

        def no_fork() -> int:
            monkeypatch.setattr(os, "fork", fork)
            raise OSError(errno.EAGAIN, "no fork now")

        monkeypatch.setattr(os, "fork", no_fork)
        watched.enter()
        watched.socket_bytes()
        watched.enter()
        space = os.statvfs(f"/proc/{agent.pid}/root/mnt")
        watched.close()
        agent.stdin.close()
    assert space.f_blocks * space.f_frsize == SIZE
