"""A command that runs again in another sandbox: its requests get the saved answers as long as they are the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from rollyard.core.errors import AllocationEnds
from rollyard.kinds.rollout import Sampling, Status
from rollyard.node.agent_run import AgentResult, CommandRun
from rollyard.node.allocation_end import AllocationEnd
from rollyard.node.replay import Replay
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.trajectory import SavedTurn
from rollyard.wire.node import Lease
from tests.node.test_loop_replay import Saver
from tests.node.test_own_loop import TASK, Looped, Told, careless
from tests.support import make
from tests.support.shell_agent import SHELL_AGENT

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = ["printf a >> f0", "test -e marked", "printf b >> f0", "exit"]


class Says(Told):
    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: Any = None) -> Sampled:
        return await super().sample(prompt_ids, sampling)


@pytest.fixture(scope="module")
def template(model_dir: Path) -> ChatTemplate:
    return ChatTemplate.load(model_dir)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    limits = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20)
    async with (
        SandboxFactory(find_runtime("auto")) as factory,
        await factory.start(SandboxSpec(None, limits)) as started,
    ):
        yield started


class Site:
    """One run of the command, with saved calls."""

    def __init__(self, template: ChatTemplate, sandbox: Sandbox, *texts: str, saved: Sequence[SavedTurn] = ()) -> None:
        lease = Lease.model_validate(
            {
                "namespace": "default", "id": "r", "fence": 1, "attempt": 1, "sample_index": 0, "sampling": {"max_tokens": 500},
                "agent": {"type": "command", "command": SHELL_AGENT, "tool_parser": "hermes"}, "budgets": {},
                "task": TASK.model_dump(), "endpoints": {"policy": make.endpoint().model_dump()},
            }
        )  # fmt: skip
        self.policy, self.saver, self.end = Says(template, *texts), Saver(), AllocationEnd()
        self.reports: list[tuple[Replay, int]] = []
        handler = GuardedHandler("looped", cast(Any, Looped(careless)))
        parts: tuple[Any, ...] = (None, self.policy, self.saver, self.end)
        self.run = CommandRun(lease, handler, sandbox, template, *parts)

        async def report(replay: Replay, stored: int) -> None:
            self.reports.append((replay, stored))

        if saved:
            self.run.play_again(saved, report)
        self.run.save()

    async def go(self) -> AgentResult:
        return await self.run.run(60.0)


async def clean(sandbox: Sandbox) -> None:
    await sandbox.bash("rm -rf /workspace/*", 10)


async def test_a_command_gets_its_answers_and_does_its_work_again(template: ChatTemplate, sandbox: Sandbox) -> None:
    await clean(sandbox)
    first = Site(template, sandbox, *SAID)
    was = await first.go()
    assert (was.status, [one.turn.text for one in first.saver.saved]) == (Status.COMPLETED, SAID)
    for count in (2, 4):
        await clean(sandbox)
        again = Site(template, sandbox, *SAID[count:], saved=first.saver.saved[:count])
        now = await again.go()
        assert again.reports == [(Replay(count, count), count)]
        assert (len(again.policy.prompts), len(again.saver.bodies)) == (4 - count, 4 - count)
        assert [one.token_ids for one in now.segments] == [one.token_ids for one in was.segments]
        assert now.turns[:count] == was.turns[:count]
        assert await sandbox.read_file("f0", 10) == b"ab"


async def test_a_command_that_asks_for_something_else_samples_from_there_on(
    template: ChatTemplate, sandbox: Sandbox
) -> None:
    await clean(sandbox)
    first = Site(template, sandbox, *SAID)
    await first.go()
    await clean(sandbox)
    await sandbox.bash("touch /workspace/marked", 10)
    again = Site(template, sandbox, "printf c >> f0", "exit", saved=first.saver.saved)
    now = await again.go()
    assert again.reports == [(Replay(2, 2, "call 3: the command asks for something else"), 2)]
    assert [turn.text for turn in now.turns] == [*SAID[:2], "printf c >> f0", "exit"]
    assert await sandbox.read_file("f0", 10) == b"ac"


async def test_a_command_leaves_its_node_with_the_call_under_way(template: ChatTemplate, sandbox: Sandbox) -> None:
    await clean(sandbox)
    first = Site(template, sandbox, *SAID)
    first.end.set(0.0, "WalltimeEnds")
    with pytest.raises(AllocationEnds, match="WalltimeEnds"):
        await first.go()
    assert [one.turn.text for one in first.saver.saved] == SAID[:1]
    assert (await sandbox.bash("ls /workspace", 10)).output == "", "the command did not get the answer"
