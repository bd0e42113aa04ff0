"""A socket that listens inside a sandbox and is accepted on outside is reached from that sandbox alone."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONNECT = "import socket; c = socket.create_connection(('127.0.0.1', {port}), 5); c.sendall(b'hi'); print(c.recv(9)); c.close()"


async def greet(listener: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    taken, _ = await loop.sock_accept(listener)
    with taken:
        taken.setblocking(False)
        said = await loop.sock_recv(taken, 9)
        await loop.sock_sendall(taken, b"hello")
    return said


async def test_what_connects_inside_is_accepted_outside(sandbox: Sandbox) -> None:
    with await sandbox.listen() as listener:
        port = listener.getsockname()[1]
        accepting = asyncio.create_task(greet(listener))
        cell = await sandbox.ipython(CONNECT.format(port=port), 20)
        assert cell.output == "b'hello'\n"
        assert await accepting == b"hi"


async def test_another_sandbox_and_the_host_do_not_reach_it(
    sandboxes: SandboxFactory, sandbox: Sandbox, spec: SandboxSpec
) -> None:
    with await sandbox.listen() as listener:
        port = listener.getsockname()[1]
        async with await sandboxes.start(spec) as other:
            cell = await other.ipython(CONNECT.format(port=port), 20)
            assert "ConnectionRefusedError" in cell.output
        with socket.socket() as ours:
            ours.settimeout(2)
            ours.connect_ex(("127.0.0.1", port))  # another server of the host may have this port
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


async def test_each_call_opens_a_port_of_its_own(sandbox: Sandbox) -> None:
    with await sandbox.listen() as one, await sandbox.listen() as two:
        assert one.getsockname() != two.getsockname()
    cell = await sandbox.ipython(CONNECT.format(port=1), 20)
    assert "ConnectionRefusedError" in cell.output
