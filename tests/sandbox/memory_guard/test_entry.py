"""The look into a sandbox's network namespace, by a short-lived process."""

from __future__ import annotations

import errno
import os
import socket
import subprocess

import pytest

from rollyard.sandbox.memory_guard.__main__ import Watched

SANDBOX = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo ready; read end"]


def test_a_sandbox_is_entered_although_the_first_fork_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = os.fork
    with subprocess.Popen(SANDBOX, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"ready\n"
        watched = Watched("one", agent.pid, os.pidfd_open(agent.pid), 1 << 30)

        def no_fork() -> int:
            monkeypatch.setattr(os, "fork", fork)
            raise OSError(errno.EAGAIN, "no fork now")

        monkeypatch.setattr(os, "fork", no_fork)
        watched.enter()
        assert watched.sockets is None
        watched.enter()
        assert watched.sockets is not None
        assert watched.sockets.family == socket.AF_NETLINK
        watched.close()
        agent.stdin.close()
