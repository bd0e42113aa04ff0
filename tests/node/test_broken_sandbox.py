"""Decisions whose fault it is that a sandbox cannot be used, by real sandboxes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest
import pytest_asyncio

from rollyard.core.errors import (
    ImageNotReady,
    NodeFault,
    RollyardError,
    SandboxBroken,
    SandboxLost,
    SandboxStartFailed,
    SnapshotRefused,
    SnapshotUnusable,
    StageTimeout,
)
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.node.broken_sandbox import Probe, judge
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.guarded_handler import answers
from tests.support.host_processes import descendants

pytestmark = pytest.mark.asyncio(loop_scope="module")
SPEC = SandboxSpec(None, Limits(cpus=1, memory_bytes=256 << 20, disk_bytes=16 << 20, processes=64))
FAILED = SandboxStartFailed("python3 did not start within 30 s")
HURT = "hurt"


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["bubblewrap", "apptainer"])
async def sandboxes(request: pytest.FixtureRequest) -> AsyncIterator[SandboxFactory]:
    try:
        runtime = find_runtime(cast(RuntimeName, request.param))
    except SandboxStartFailed as error:
        pytest.skip(str(error))
    async with SandboxFactory(runtime) as factory:
        yield factory


async def judged(
    sandboxes: SandboxFactory,
    error: RollyardError = FAILED,
    *,
    control: str = "true",
    files: str = f"touch {HURT}",
    probe: Probe | None = None,
    killed: bool = False,
) -> RollyardError:
    """Judge an error. `control` and `files`: command that each of the two sandboxes runs first. `killed`: process 1 of the
    one with files is killed from outside."""

    @contextlib.asynccontextmanager
    async def started(command: str) -> AsyncIterator[Sandbox]:
        async with await sandboxes.start(SPEC) as sandbox:
            assert (await sandbox.bash(command, 60)).exit_code == 0
            if killed and command == files:
                for one in descendants(os.getpid()):
                    if one.pid_inside == 1:
                        os.kill(one.pid, signal.SIGKILL)
            yield sandbox

    async def unhurt(sandbox: Sandbox) -> None:
        if (await sandbox.bash(f"test ! -e {HURT}", 60)).exit_code != 0:
            raise SandboxStartFailed("it is hurt")

    return await judge(error, lambda: started(control), lambda: started(files), probe or unhurt)


async def test_files_that_make_a_sandbox_useless_are_the_agents_fault(sandboxes: SandboxFactory) -> None:
    for error in (FAILED, StageTimeout("EVAL took more than 9 s"), SnapshotRefused("no space"), SandboxLost("ended")):
        found = await judged(sandboxes, error)
        assert isinstance(found, SandboxBroken)
        assert str(found) == "with the agent's files the sandbox cannot be used, and without them it can: it is hurt"


async def test_a_node_on_which_no_sandbox_answers_is_not_the_agents_fault(sandboxes: SandboxFactory) -> None:
    assert await judged(sandboxes, control=f"touch {HURT}") is FAILED


async def test_a_sandbox_that_answers_the_second_time_proves_nothing(sandboxes: SandboxFactory) -> None:
    assert await judged(sandboxes, files="echo well") is FAILED


async def test_a_sandbox_that_something_kills_proves_nothing(sandboxes: SandboxFactory) -> None:
    assert await judged(sandboxes, killed=True) is FAILED


async def test_a_sandbox_that_is_ended_for_the_nodes_lack_of_memory_proves_nothing(sandboxes: SandboxFactory) -> None:
    async def short(sandbox: Sandbox) -> None:
        if (await sandbox.bash(f"test ! -e {HURT}", 60)).exit_code != 0:
            sandbox.node_fault = "the memory of the allocation ran out"
            raise SandboxStartFailed("its processes were ended")

    assert await judged(sandboxes, probe=short) is FAILED


@pytest.mark.parametrize(
    "error",
    [NodeFault("the disk is full"), SnapshotUnusable("the image has changed"), ImageNotReady("img", "it is pulled")],
    ids=lambda error: type(error).__name__,
)
async def test_other_faults_start_no_sandbox(error: RollyardError) -> None:
    never = cast(Callable[[], contextlib.AbstractAsyncContextManager[Sandbox]], None)
    assert await judge(error, never, never, cast(Probe, None)) is error


async def test_bash_answers(sandboxes: SandboxFactory) -> None:
    async with await sandboxes.start(SPEC) as sandbox:
        await answers(sandbox, 30)
        await sandbox.bash("exec 3<&-; function true { sleep 100; }", 30)
        with pytest.raises(SandboxStartFailed, match="bash runs no command within 1 s"):
            await answers(sandbox, 1)
