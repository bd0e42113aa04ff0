"""A command that runs again in another sandbox: its requests get the saved answers as long as they are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollyard.core.errors import AllocationEnds
from rollyard.kinds.resumption import Resumption
from rollyard.kinds.rollout import Sampling, Status
from rollyard.node.agent_run import AgentResult, CommandRun
from rollyard.node.allocation_end import AllocationEnd
from rollyard.node.lease_run import LeaseRun
from rollyard.node.replay import Replay
from rollyard.node.saved_work import SavedWork
from rollyard.node.turn_saver import unpacked
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.trajectory import SavedTurn
from rollyard.wire.node import CANNOT_MOVE_REASON, WALLTIME_REASON, Lease, TurnsHeader
from tests.node.test_lease_run import Full, work
from tests.node.test_loop_replay import Saver
from tests.node.test_own_loop import TASK, Looped, Told, careless
from tests.support import make
from tests.support.shell_agent import SHELL_AGENT

pytestmark = pytest.mark.asyncio(loop_scope="module")
LEASE = Lease.model_validate(
    {
        "namespace": "default", "id": "r", "fence": 1, "attempt": 1, "sample_index": 0, "sampling": {"max_tokens": 500},
        "agent": {"type": "command", "command": SHELL_AGENT, "tool_parser": "hermes"}, "budgets": {}, "resume": True,
        "task": TASK.model_dump(), "endpoints": {"policy": make.endpoint().model_dump()},
    }
)  # fmt: skip
SAID = ["printf a >> f0", "test -e marked", "printf b >> f0", "exit"]


class Says(Told):
    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: Any = None) -> Sampled:
        return await super().sample(prompt_ids, sampling)


class Site:
    """One run of the command, with saved calls."""

    def __init__(self, template: ChatTemplate, sandbox: Sandbox, *texts: str, saved: Sequence[SavedTurn] = ()) -> None:
        self.policy, self.saver, self.end = Says(template, *texts), Saver(), AllocationEnd()
        self.reports: list[tuple[Replay, int]] = []
        handler = GuardedHandler("looped", cast(Any, Looped(careless)))
        parts: tuple[Any, ...] = (None, self.policy, self.saver, self.end)
        self.run = CommandRun(LEASE, handler, sandbox, template, *parts)

        async def report(replay: Replay, stored: int) -> None:
            self.reports.append((replay, stored))

        if saved:
            self.run.play_again(saved, report)
        self.run.save()

    async def go(self) -> AgentResult:
        return await self.run.run(60.0)


async def clean(sandbox: Sandbox) -> None:
    await sandbox.bash("rm -rf /workspace/*", 10)


async def test_a_command_gets_its_answers_and_does_its_work_again(
    template: ChatTemplate, shared_sandbox: Sandbox
) -> None:
    await clean(shared_sandbox)
    first = Site(template, shared_sandbox, *SAID)
    was = await first.go()
    assert (was.status, [one.turn.text for one in first.saver.saved]) == (Status.COMPLETED, SAID)
    for count in (2, 4):
        await clean(shared_sandbox)
        again = Site(template, shared_sandbox, *SAID[count:], saved=first.saver.saved[:count])
        now = await again.go()
        assert again.reports == [(Replay(count, count), count)]
        assert (len(again.policy.prompts), len(again.saver.bodies)) == (4 - count, 4 - count)
        assert [one.token_ids for one in now.segments] == [one.token_ids for one in was.segments]
        assert now.turns[:count] == was.turns[:count]
        assert await shared_sandbox.read_file("f0", 10) == b"ab"


async def test_a_command_that_asks_for_something_else_samples_from_there_on(
    template: ChatTemplate, shared_sandbox: Sandbox
) -> None:
    await clean(shared_sandbox)
    first = Site(template, shared_sandbox, *SAID)
    await first.go()
    await clean(shared_sandbox)
    await shared_sandbox.bash("touch /workspace/marked", 10)
    again = Site(template, shared_sandbox, "printf c >> f0", "exit", saved=first.saver.saved)
    now = await again.go()
    assert again.reports == [(Replay(2, 2, "call 3: the command asks for something else"), 2)]
    assert [turn.text for turn in now.turns] == [*SAID[:2], "printf c >> f0", "exit"]
    assert await shared_sandbox.read_file("f0", 10) == b"ac"


async def test_a_command_leaves_its_node_with_the_call_under_way(
    template: ChatTemplate, shared_sandbox: Sandbox
) -> None:
    await clean(shared_sandbox)
    first = Site(template, shared_sandbox, *SAID)
    first.end.set(0.0, "WalltimeEnds")
    with pytest.raises(AllocationEnds, match="WalltimeEnds"):
        await first.go()
    assert [one.turn.text for one in first.saver.saved] == SAID[:1]
    assert (await shared_sandbox.bash("ls /workspace", 10)).output == "", "the command did not get the answer"


class Server(Full):
    """Keeps what a lease saves."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.resumed: list[Resumption] = []

    async def turns(self, header: TurnsHeader, bodies: Sequence[bytes]) -> None:
        self.bodies = [*self.bodies[: header.kept], *bodies]
        self.resumed += [header.resumed] if header.resumed is not None else []


async def agent_of(
    server: Server, template: ChatTemplate, sandbox: Sandbox, *texts: str, saved: Sequence[SavedTurn] = (), **more: Any
) -> AgentResult:
    """Run the part of a lease that is the agent's. `more`: `environment`, `walltime`."""
    run = work(LeaseRun, server, LEASE.model_copy(update={"lost": "AllocationEnded" if saved else ""}))
    run._specs = cast(Any, SimpleNamespace(run_seconds=60.0))
    run._handover.saved = SavedWork(saved, count=len(saved))
    policy = Says(template, *texts)
    policy.failover.endpoint = make.endpoint()
    run._node = dataclasses.replace(run._node, policy=cast(Any, lambda lease, template: policy))
    if "walltime" in more:
        run._node.end.set(more["walltime"], WALLTIME_REASON)
    handler = GuardedHandler("looped", cast(Any, Looped(careless)))
    async with run._handover.saving(sandbox, "v1") as saver:
        parts: tuple[Any, ...] = (more.get("environment"), template, None, None)
        result = await run._agent(handler, sandbox, *parts, saver)
        await saver.flush()
    return result


async def test_a_lease_goes_on_with_the_calls_that_the_server_has(
    template: ChatTemplate, shared_sandbox: Sandbox
) -> None:
    await clean(shared_sandbox)
    server = Server()
    was = await agent_of(server, template, shared_sandbox, *SAID)
    assert [one.turn.text for one in unpacked(server.bodies)] == SAID
    server.bodies = server.bodies[:3]
    await clean(shared_sandbox)
    now = await agent_of(server, template, shared_sandbox, "exit", saved=unpacked(server.bodies))
    (resumption,) = server.resumed
    assert (resumption.turn, resumption.replayed, resumption.dropped, resumption.why) == (3, 3, 0, None)
    assert resumption.reason == "AllocationEnded"
    assert [one.turn.text for one in unpacked(server.bodies)] == SAID
    assert [one.token_ids for one in now.segments] == [one.token_ids for one in was.segments]


async def test_an_environment_that_cannot_be_saved_needs_walltime_for_the_budget(
    template: ChatTemplate, shared_sandbox: Sandbox
) -> None:
    forgets = SimpleNamespace(saves=False)
    for walltime, fits in ((59.0, False), (61.0, True)):
        running = agent_of(Server(), template, shared_sandbox, "exit", environment=forgets, walltime=walltime)
        if fits:
            assert (await running).status is Status.COMPLETED
        else:
            with pytest.raises(AllocationEnds, match=CANNOT_MOVE_REASON):
                await running
