"""A daemon left in the agent's sandbox sees nothing of EVAL, because it has ended by then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.kinds.task import Task
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.base import Evaluation
from rollyard.tasks.code.handler import CodeHandler
from tests.support.until import until

SPEC = SandboxSpec(image=None, limits=Limits(cpus=1, memory_bytes=2 << 30, disk_bytes=64 << 20))
TASK = Task.model_validate(
    {
        "kind": "code",
        "problem": "x",
        "solution": "/workspace/s.py",
        "cases": [{"call": "f(20417)", "expect": "20418"}],
    }
)
NAME = f"rollyard-spy-{os.getpid()}"
SPY = f"setsid bash -c 'exec -a {NAME} bash -c \"while :; do grep -rs 20417 /tmp /workspace >> /dev/shm/seen; done\"' &"


@pytest.fixture
async def sandboxes() -> AsyncIterator[SandboxFactory]:
    async with SandboxFactory(await asyncio.to_thread(find_runtime)) as made:
        yield made


def spies() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if NAME.encode() in command.split(b"\0")[0]:
                found.append(entry.name)
    return found


async def test_a_daemon_of_the_agent_is_gone_before_hidden_cases_appear(sandboxes: SandboxFactory) -> None:
    handler = CodeHandler()
    async with await sandboxes.start(SPEC) as run:
        await run.write_file("/workspace/s.py", b"def f(n):\n    return n + 1\n")
        await run.bash(SPY, 10)
        await until(spies)
        artifact = await handler.collect(TASK, run)
    assert spies() == []
    async with await sandboxes.start(SPEC) as fresh:
        score = await handler.evaluate(TASK, Evaluation(artifact, [], 60.0, fresh))
        assert score.reward == 1.0
        seen = await fresh.bash("cat /dev/shm/seen /workspace/s.py; ls /workspace", 10)
        assert "No such file" in seen.output
        job = (await fresh.read_file("/tmp/check/job.json", 1 << 16)).decode()
    assert "20417" in job
    assert "20418" not in job  # what is expected never enters a sandbox
    await handler.close()
