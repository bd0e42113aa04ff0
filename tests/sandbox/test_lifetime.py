"""How a sandbox ends: closed, killed, or with its owner; and that nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollyard.core.errors import SandboxLost, SandboxStartFailed
from rollyard.kinds.values.host_pattern import HostPattern
from rollyard.sandbox.base import Runtime, SandboxSpec
from rollyard.sandbox.bubblewrap import Bubblewrap
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.support.host_processes import HostProcess, descendants, host_processes
from tests.support.until import until

pytestmark = [pytest.mark.slow(20), pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module", autouse=True)
def _guard_runs(sandbox: Sandbox) -> None:
    """The memory guard starts with a factory's first sandbox. These tests look at the processes that are new."""


OWNER = """
import asyncio, sys
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory

async def main():
    sandboxes = SandboxFactory(find_runtime(sys.argv[1]))
    sandbox = await sandboxes.start(SandboxSpec(None, Limits(1, 1 << 30, 64 << 20)))
    await sandbox.prepare(["bash", "ipython"])
    await sandbox.bash("setsid sleep 1000 & setsid nohup sleep 1000 > /dev/null &", 10)
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def owner_with_a_sandbox(runtime: Runtime) -> AsyncIterator[tuple[int, list[HostProcess]]]:
    """Another process that owns a sandbox with daemons in it: its pid, and everything below it."""
    argv = [sys.executable, "-c", OWNER, runtime.name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
            await until(lambda: len(descendants(process.pid)) >= 6)
            family = descendants(process.pid)
            assert sum(one.pid_inside == 1 for one in family) == 1
            yield process.pid, family
        finally:
            process.kill()


async def test_the_owner_is_killed(runtime: Runtime) -> None:
    async with owner_with_a_sandbox(runtime) as (pid, family):
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(one.runs for one in family))


async def test_the_owner_is_killed_while_the_agent_cannot_act(runtime: Runtime) -> None:
    if runtime.name != "bubblewrap":
        pytest.skip("only bubblewrap has the kernel kill a sandbox with its owner")
    async with owner_with_a_sandbox(runtime) as (pid, family):
        os.kill(next(one.pid for one in family if one.pid_inside == 1), signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(one.runs for one in family))


async def test_what_a_launcher_leaves_behind_while_it_starts_ends_with_the_owner(open_folder: Path) -> None:
    """A child of bwrap waits for ever for a bwrap that was killed. No parent and no signal ties it to the owner."""
    bubblewrap = find_runtime("bubblewrap")
    assert isinstance(bubblewrap, Bubblewrap)
    leaving = open_folder / "leaving"
    leaving.write_text(f'#!/bin/bash\nsetsid sleep 100000.{os.getpid()} <&0 &\nexec {bubblewrap.program} "$@"\n')
    leaving.chmod(0o755)
    owner = OWNER.replace("find_runtime(sys.argv[1])", "replace(find_runtime(sys.argv[1]), program=sys.argv[2])")
    argv = [sys.executable, "-c", "from dataclasses import replace" + owner, "bubblewrap", str(leaving)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
        assert commands_with(f"sleep\x00100000.{os.getpid()}")
        process.kill()
    await until(lambda: not commands_with(f"sleep\x00100000.{os.getpid()}"))


async def test_closing_ends_every_process(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    before = {one.pid for one in descendants(os.getpid())}
    sandbox = await sandboxes.start(spec)
    await sandbox.bash("setsid sleep 1000 & trap '' TERM INT HUP", 10)
    family = [one for one in descendants(os.getpid()) if one.pid not in before]
    assert len(family) >= 3
    await sandbox.close()
    await until(lambda: not any(one.runs for one in family))
    assert not sandbox.alive
    await sandbox.close()
    with pytest.raises(SandboxLost, match="closed"):
        await sandbox.bash("echo", 1)


async def test_closing_under_a_running_call(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    sandbox = await sandboxes.start(spec)
    running = asyncio.create_task(sandbox.bash("sleep 1000", 100))
    await asyncio.sleep(0)
    await sandbox.close()
    with pytest.raises(SandboxLost):
        await running


@pytest.mark.parametrize("runtime", ["bubblewrap"], indirect=True)
async def test_closing_that_is_cancelled_while_the_proxy_ends(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    before = {process.pid for process in host_processes()}
    sandbox = await sandboxes.start(replace(spec, allowed_hosts=(HostPattern.parse("mirror"),)))
    connected = await sandbox.bash("exec 5<> /dev/tcp/127.0.0.1/3128 && echo connected", 10)
    assert connected.output == "connected\n"
    await until(lambda: bool(sandbox._egress._connections))
    closing = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until(lambda: not [one for one in descendants(os.getpid()) if one.pid not in before])


async def test_a_killed_agent_is_a_lost_sandbox(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    before = {one.pid for one in descendants(os.getpid())}
    sandbox = await sandboxes.start(spec)
    running = asyncio.create_task(sandbox.bash("sleep 1000", 100))
    inside = [one for one in descendants(os.getpid()) if one.pid not in before]
    os.kill(next(one.pid for one in inside if one.pid_inside == 1), signal.SIGKILL)
    with pytest.raises(SandboxLost, match=sandbox.id):
        await running
    assert not sandbox.alive
    with pytest.raises(SandboxLost):
        await sandbox.ipython("1", 1)
    await sandbox.close()


async def test_a_sandbox_that_dies_while_its_tools_start_is_a_lost_one(
    sandboxes: SandboxFactory, spec: SandboxSpec
) -> None:
    before = {one.pid for one in descendants(os.getpid())}
    sandbox = await sandboxes.start(spec)
    family = [one for one in descendants(os.getpid()) if one.pid not in before]
    running = asyncio.create_task(sandbox.prepare(["bash", "ipython"]))
    await asyncio.sleep(0)
    os.kill(next(one.pid for one in family if one.pid_inside == 1), signal.SIGKILL)
    with pytest.raises(SandboxLost, match=sandbox.id):
        await running
    await sandbox.close()


async def test_a_killed_launcher_is_a_lost_sandbox(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    before = {one.pid for one in descendants(os.getpid())}
    sandbox = await sandboxes.start(spec)
    family = [one for one in descendants(os.getpid()) if one.pid not in before]
    os.kill(next(one.pid for one in family if one.parent == os.getpid()), signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await sandbox.bash("sleep 1000", 100)
    await until(lambda: not any(one.runs for one in family))
    await sandbox.close()


async def test_an_agent_that_hangs_is_a_lost_sandbox(
    sandboxes: SandboxFactory, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollyard.sandbox.sandbox.MARGIN_SECONDS", 0.2)
    before = {one.pid for one in descendants(os.getpid())}
    sandbox = await sandboxes.start(spec)
    family = [one for one in descendants(os.getpid()) if one.pid not in before]
    os.kill(next(one.pid for one in family if one.pid_inside == 1), signal.SIGSTOP)
    with pytest.raises(SandboxLost, match="no answer within"):
        await sandbox.bash("echo", 0.2)
    assert not sandbox.alive
    monkeypatch.setattr("rollyard.sandbox.launcher.END_SECONDS", 0.2)
    await sandbox.close()
    await until(lambda: not any(one.runs for one in family))


async def test_closing_the_factory_ends_all(runtime: Runtime, spec: SandboxSpec) -> None:
    before = {one.pid for one in descendants(os.getpid())}
    async with SandboxFactory(runtime) as factory:
        started = [await factory.start(spec) for _ in range(3)]
    assert not any(box.alive for box in started)
    await until(lambda: {one.pid for one in descendants(os.getpid())} <= before)


async def test_a_cancelled_start_leaves_nothing(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    before = {one.pid for one in descendants(os.getpid())}
    alone = orphans()
    for delay in (*(0.0004 * n for n in range(40)), 0.03, 0.06):
        starting = asyncio.create_task(sandboxes.start(spec))
        await asyncio.sleep(delay)
        if starting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await starting
        else:
            await (await starting).close()
    await until(lambda: {one.pid for one in descendants(os.getpid())} <= before)
    await until(lambda: orphans() <= alone)


def orphans() -> set[HostProcess]:
    """First processes of sandboxes whose launchers are gone."""
    return {one for one in host_processes() if one.parent == 1 and one.pid_inside == 1}


def held() -> tuple[int, int, int]:
    """Processes, mounts and file descriptors of this process."""
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    return len(descendants(os.getpid())), mounts, len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("waves", [2, pytest.param(40, marks=pytest.mark.long)])
async def test_waves_of_sandboxes_leave_nothing(sandboxes: SandboxFactory, spec: SandboxSpec, waves: int) -> None:
    before, size = held(), 10 if waves == 2 else 25
    for _ in range(waves):
        started = await asyncio.gather(*(sandboxes.start(spec) for _ in range(size)))
        await asyncio.gather(*(box.bash("echo x > /tmp/x; setsid sleep 1000 &", 60) for box in started))
        await asyncio.gather(*(box.close() for box in started))
    await until(lambda: held() == before)


async def test_a_launcher_that_ends_during_the_start_gives_no_sandbox(open_folder: Path, spec: SandboxSpec) -> None:
    """bwrap, when it is killed before it has tied its child to itself, leaves the child. Nobody would limit its memory."""
    bubblewrap = find_runtime("bubblewrap")
    assert isinstance(bubblewrap, Bubblewrap)
    untied, mark = open_folder / "untied", open_folder.name
    words = f'--setenv MARK {mark} "${{@/--die-with-parent/--new-session}}"'
    untied.write_text(f"#!/bin/bash\n{bubblewrap.program} {words} <&0 &\n")
    untied.chmod(0o755)
    factory = SandboxFactory(replace(bubblewrap, program=str(untied)))
    with pytest.raises(SandboxStartFailed, match="ended while its sandbox started"):
        await factory.start(spec)
    await factory.close()
    await until(lambda: not commands_with(f"MARK\0{mark}"))


def commands_with(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return [command for command in found if text in command]
