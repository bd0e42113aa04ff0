"""Messages to a guard that does not read yet."""

from __future__ import annotations

import socket

from rollyard.sandbox.memory_guard import messages


def test_a_new_guard_gets_all_sandboxes_before_it_reads() -> None:
    told = [{"watch": f"{n:012x}", "launcher": n, "limit": 1 << 40} for n in range(600)]
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        ours.setblocking(False)
        messages.send(ours, *told)
        assert list(messages.received(its)) == told
