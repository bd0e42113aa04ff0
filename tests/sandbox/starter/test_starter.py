"""The starter can be killed at any moment: live sandboxes go on, and the next start gets another starter."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.core.errors import SandboxStartFailed
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import LAUNCH_ENVIRONMENT, find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox.starter import client
from rollyard.sandbox.starter.client import Launch, SandboxStarter, run_alone
from tests.support.host_processes import HostProcess, descendants
from tests.support.until import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SPEC = SandboxSpec(None, Limits(1, 1 << 30, 64 << 20))


@pytest_asyncio.fixture(loop_scope="module")
async def sandboxes() -> AsyncIterator[SandboxFactory]:
    async with SandboxFactory(find_runtime("bubblewrap")) as factory:
        yield factory


def starter() -> HostProcess:
    (found,) = [one for one in descendants(os.getpid()) if "sandbox/starter" in command_line(one.pid)]
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def test_a_killed_starter_ends_no_sandbox(sandboxes: SandboxFactory) -> None:
    async with await sandboxes.start(SPEC) as before:
        killed = starter()
        os.kill(killed.pid, signal.SIGKILL)
        await until(lambda: not killed.runs)
        assert (await before.bash("echo lives", 10)).output == "lives\n"
        async with await sandboxes.start(SPEC) as after:
            assert (await after.bash("echo too", 10)).output == "too\n"
        assert (await before.bash("echo still", 10)).output == "still\n"
        assert starter() != killed


async def test_a_starter_killed_with_a_request_fails_this_start_alone() -> None:
    own = SandboxStarter(LAUNCH_ENVIRONMENT)
    launch, output = Launch(["true"]), os.memfd_create("output")
    try:
        await (await own.start(launch, output, output)).wait()
        stopped = starter()
        os.kill(stopped.pid, signal.SIGSTOP)
        starting = asyncio.create_task(own.start(launch, output, output))
        await asyncio.sleep(0)  # the request is sent
        os.kill(stopped.pid, signal.SIGKILL)
        with pytest.raises(SandboxStartFailed, match="the sandbox starter was killed"):
            await starting
        await (await own.start(launch, output, output)).wait()
    finally:
        own.close()
        os.close(output)


async def test_a_starter_that_hangs_is_replaced(sandboxes: SandboxFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await sandboxes.start(SPEC):
        stopped = starter()
        os.kill(stopped.pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(client, "ANSWER_SECONDS", 0.2)
            with pytest.raises(SandboxStartFailed, match="the sandbox starter was killed"):
                await sandboxes.start(SPEC)
        async with await sandboxes.start(SPEC) as after:
            assert (await after.bash("echo too", 10)).output == "too\n"
        assert not stopped.runs


async def test_closing_ends_the_starter() -> None:
    before = {one.pid for one in descendants(os.getpid())}
    async with SandboxFactory(find_runtime("bubblewrap")) as factory, await factory.start(SPEC):
        assert starter()
    assert {one.pid for one in descendants(os.getpid())} <= before


async def test_a_launcher_inherits_nothing_but_its_input_and_output() -> None:
    """It runs under the account of sandboxes, in a session of its own, and with the usual signals."""
    os.environ["ROLLYARD_TEST_LEAK"] = "leak"
    starter = SandboxStarter(LAUNCH_ENVIRONMENT)
    try:
        output = os.memfd_create("output")
        script = "ls /proc/self/fd; cat /proc/self/status; env; ps -o sid= -p $$; echo $$; id -u; pwd"
        with open(os.devnull) as empty:
            process = await starter.start(Launch(["sh", "-c", script]), empty.fileno(), output)
        await process.wait()
        said = os.pread(output, 1 << 16, 0).decode()
        os.close(output)
    finally:
        starter.close()
        del os.environ["ROLLYARD_TEST_LEAK"]
    lines = said.splitlines()
    assert lines[:4] == ["0", "1", "2", "3"]  # 3 is the listing's own
    ignored = int(next(line.split()[1] for line in lines if line.startswith("SigIgn:")), 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored & 1 << number - 1
    assert f"PPid:\t{process.pid}" in lines
    assert "leak" not in said
    session, shell, account, folder = (line.strip() for line in lines[-4:])
    assert session == shell == str(process.pid)
    assert account != "0"
    assert folder == "/"


async def test_alone(open_folder: Path) -> None:
    done = await asyncio.to_thread(run_alone, Launch(["sh", "-c", "echo out; echo error >&2; exit 3"]), {}, 10)
    assert (done.returncode, done.stdout) == (3, "out\nerror\n")
    done = await asyncio.to_thread(run_alone, Launch([f"{open_folder}/program"]), {}, 10)
    assert (done.returncode, done.stdout) == (127, f"{open_folder}/program: No such file or directory\n")
