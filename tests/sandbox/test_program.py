"""Programs beside the tools: their ends, and that a cancelled call leaves nothing for the next one."""

from __future__ import annotations

import asyncio
import os

import pytest

from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.program import STDERR, STDOUT, Program, ProgramSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def output(program: Program, channel: int = STDOUT) -> bytes:
    return b"".join([data async for data in _pieces(program, channel)])


async def _pieces(program: Program, channel: int):  # type: ignore[no-untyped-def]
    while data := await program.read(channel):
        yield data


async def test_a_cancelled_listen_leaves_no_socket_for_the_next_one(
    sandboxes: SandboxFactory, spec: SandboxSpec
) -> None:
    async with await sandboxes.start(spec) as sandbox:
        before = os.listdir("/proc/self/fd")
        for port in range(7001, 7021):
            first = asyncio.create_task(sandbox.listen(port))
            await asyncio.sleep(0)  # the call is on its way
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            with await sandbox.listen() as listener:
                assert listener.getsockname()[1] != port, "this is the socket of the cancelled call"
        assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_a_program_that_is_closed_leaves_no_process_and_no_descriptor(sandbox: Sandbox) -> None:
    before = os.listdir("/proc/self/fd")
    for tty in (False, True):
        for _ in range(3):
            mark = f"{os.getpid()}{tty:d}"
            command = f"trap '' HUP; sleep 1{mark} & echo there; sleep 2{mark}; sleep 3{mark}"
            program = await sandbox.start_program(ProgramSpec(["bash", "-c", command], tty=tty))
            assert b"there" in await program.read(STDOUT)
            await program.close()
            count = f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [123]{mark}'"
            async with asyncio.timeout(60):
                while (await sandbox.bash(count, 20)).output != "0\n":
                    await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_a_cancelled_start_leaves_nothing(sandbox: Sandbox) -> None:
    before = os.listdir("/proc/self/fd")
    for turns in range(6):
        starting = asyncio.create_task(sandbox.start_program(ProgramSpec(["sleep", f"77{os.getpid()}"])))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        (found,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(found, Program):
            await found.close()
    async with await sandbox.start_program(ProgramSpec(["true"])) as program:
        assert await program.ended == 0
    count = f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 7[7]{os.getpid()}'"
    async with asyncio.timeout(60):
        while (await sandbox.bash(count, 20)).output != "0\n":
            await asyncio.sleep(0.05)
        while len(os.listdir("/proc/self/fd")) != len(before):
            await asyncio.sleep(0.01)


async def test_what_a_program_leaves_behind_does_not_hold_its_end_up(sandbox: Sandbox) -> None:
    async with await sandbox.start_program(
        ProgramSpec(["bash", "-c", "setsid sleep 1000 & echo done; exit 4"])
    ) as program:
        out, err = await asyncio.gather(output(program), output(program, STDERR))
        assert (out, err, await program.ended) == (b"done\n", b"", 4)


async def test_a_program_has_the_limits_of_the_tools(sandbox: Sandbox) -> None:
    command = "ulimit -v -u -f -c; cat /proc/$$/oom_score_adj"
    async with await sandbox.start_program(ProgramSpec(["bash", "-c", command])) as program:
        mine = (await output(program)).decode()
    assert mine == (await sandbox.bash(command, 20)).output
    async with await sandbox.start_program(ProgramSpec(["ls", "/proc/self/fd"])) as program:
        assert await output(program) == b"0\n1\n2\n3\n", "no descriptor of the sandbox agent is open in it"
