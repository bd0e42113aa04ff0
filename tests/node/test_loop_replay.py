"""A handler's own loop that runs again: it gets the turns that were saved, and its calls run in the new sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from rollyard.core.errors import AllocationEnds
from rollyard.kinds.rollout import AgentSpec
from rollyard.node import own_loop
from rollyard.node.agent_loop import AgentProgress, prompt_ids_of
from rollyard.node.agent_run import AgentResult
from rollyard.node.allocation_end import AllocationEnd
from rollyard.node.replay import Replay
from rollyard.node.saved_work import why_never
from rollyard.node.turn_saver import packed, unpacked
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks import LoopAgent
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.trajectory import SavedTurn
from rollyard.wire.node import Lease
from tests.node.test_own_loop import ASK, MORE, Looped, Site, careless, documented
from tests.support.scripted_agent import call

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = ["1. count", call("bash", command="cat count; echo x >> count"), "three", "count again", "two files", "done"]
"""Turns of the documented handler: planner, worker twice, planner, worker, planner."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def factory() -> AsyncIterator[SandboxFactory]:
    async with SandboxFactory(find_runtime("auto")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(factory: SandboxFactory) -> AsyncIterator[Sandbox]:
    limits = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20)
    async with await factory.start(SandboxSpec(None, limits)) as started:
        yield started


class Saver:
    """Keeps what a run saves."""

    def __init__(self) -> None:
        self.stopped, self.bodies = "", list[bytes]()

    def begin(self, tools: Any, *, held: bool) -> None: ...

    def goes_on(self, run: AgentProgress, spent: float) -> None:
        self.save(packed(run, spent))

    def save(self, body: bytes) -> None:
        self.bodies.append(body)

    async def flush(self) -> None: ...

    @property
    def saved(self) -> list[SavedTurn]:
        return unpacked(self.bodies)


class Again:
    """One more run of a loop, with saved turns."""

    def __init__(self, site: Site, saved: Sequence[SavedTurn] = ()) -> None:
        self.site, self.saver, self.end = site, Saver(), AllocationEnd()
        self.reports: list[tuple[Replay, int]] = []

        async def report(replay: Replay, stored: int) -> None:
            self.reports.append((replay, stored))

        if saved:
            site.run.play_again(saved, report)
        site.run.save_with(cast(Any, self.saver), self.end)

    async def go(self) -> AgentResult:
        return await self.site.go()


NO_SANDBOX = SimpleNamespace(spec=SimpleNamespace(host_network=False, allowed_hosts=()))


async def clean(sandbox: Sandbox) -> None:
    """Put the sandbox's files into the state behind INIT."""
    await sandbox.bash("printf 'one\\n' > count", 10)


async def test_a_loop_gets_all_its_turns_as_they_were_sampled(template: ChatTemplate, sandbox: Sandbox) -> None:
    await clean(sandbox)
    first = Again(Site(template, sandbox, documented(), *SAID))
    was = await first.go()
    saved = first.saver.saved
    assert [one.conversation for one in saved] == [0, 1, 1, 0, 1, 0]
    for count in (1, 2, 5, 6):
        await clean(sandbox)
        again = Again(Site(template, sandbox, documented(), *SAID[count:]), saved[:count])
        now = await again.go()
        assert again.reports == [(Replay(count, count), count)]
        assert (len(again.site.policy.prompts), again.saver.saved[:count]) == (6 - count, saved[:count])
        assert now.turns[:count] == was.turns[:count]
        for one, other in zip(was.segments, now.segments, strict=True):
            assert (one.token_ids, one.loss_mask) == (other.token_ids, other.loss_mask)
        assert (await sandbox.bash("cat count", 10)).output == "one\nx\n", "the call has run again"
        assert again.site.ended == [1, 2, 3, 4, 5, 6]


async def test_a_call_with_another_result_keeps_its_turn_and_drops_what_is_left(
    template: ChatTemplate, sandbox: Sandbox
) -> None:
    await clean(sandbox)
    first = Again(Site(template, sandbox, documented(), *SAID))
    was = await first.go()
    again = Again(Site(template, sandbox, documented(), "now two files", "done"), first.saver.saved)
    now = await again.go()
    assert again.reports == [(Replay(2, 2, "turn 2: call 1 had another result"), 1)]
    assert [turn.text for turn in now.turns] == [*SAID[:2], "now two files", "done"]
    assert (was.turns[1].tool_results, now.turns[1].tool_results) == (["one"], ["one\nx"])
    assert again.saver.saved[1].turn == now.turns[1].model_copy(update={"segment": 0})
    assert "one\nx" in template.decode(again.site.policy.prompts[0])


@pytest.mark.parametrize("how", ["prompt", "length", "end", "first"])
async def test_a_loop_that_asks_for_something_else_samples_from_there_on(template: ChatTemplate, how: str) -> None:
    asked = iter(range(9))

    async def restless(agent: LoopAgent) -> None:
        changed = next(asked) > 0
        if changed and how == "first":
            await agent.conversation([MORE]).sample()
        chat = agent.conversation(ASK, tools=[])
        for turn in range(3):
            await chat.sample(max_tokens=7 if changed and how == "length" and turn else None)
            if changed and how == "end":
                return
            chat.add({"role": "user", "content": "Otherwise!"} if changed and how == "prompt" else MORE)

    handler = Looped(restless)
    first = Again(Site(template, NO_SANDBOX, handler, "a", "b", "c"))
    await first.go()
    again = Again(Site(template, NO_SANDBOX, handler, "d", "e", "f", "g"), first.saver.saved)
    now = await again.go()
    kept, why = {
        "prompt": (1, "turn 2: the loop asks with another prompt"),
        "length": (1, "turn 2: the loop asks with another prompt"),
        "end": (1, "turn 2: the loop ended before it"),
        "first": (0, "turn 1: the loop asks for another turn"),
    }[how]
    assert again.reports == [(Replay(kept, kept, why), kept)]
    texts = {"end": ["a"], "first": ["d", "e", "f", "g"]}
    assert [turn.text for turn in now.turns] == texts.get(how, ["a", "d", "e"])


@pytest.mark.parametrize("late", [False, True])
async def test_conversations_at_the_same_time_get_their_turns_in_any_order(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """The turn that was under way in one of them is sampled, and the other one still gets its turns. `late`: it asks for its
    first one when the other one has none left."""

    async def both(agent: LoopAgent) -> None:
        async def one(name: str, turns: int) -> None:
            chat = agent.conversation([{"role": "user", "content": name}], tools=[])
            for _ in range(turns):
                await chat.sample()
                chat.add(MORE)

        async with asyncio.TaskGroup() as group:
            group.create_task(one("first", 4))
            group.create_task(one("second", 4))

    first = Again(Site(template, NO_SANDBOX, Looped(both)))
    await first.go()
    saved = first.saver.saved
    lost = [one for one in saved if one.conversation == 0] + [one for one in saved if one.conversation == 1][:1]
    again = Again(Site(template, NO_SANDBOX, Looped(both)), lost[::-1][:1] + lost[:-1])

    async def prompt_ids(conversation: Conversation, context: int | None) -> list[int]:
        ids = await prompt_ids_of(conversation, context)
        while late and "first" in template.decode(ids) and not again.site.policy.prompts:
            await asyncio.sleep(0)
        return ids

    monkeypatch.setattr(own_loop, "prompt_ids_of", prompt_ids)
    now = await again.go()
    ((replay, stored),) = again.reports
    assert replay == Replay(5, 5)
    assert stored < 5, "they went on in another order, so the server gets them again"
    assert (len(again.site.policy.prompts), len(now.turns)) == (3, 8)


async def test_a_loop_leaves_its_node_before_a_turn_that_may_not_end_there(template: ChatTemplate) -> None:
    first = Again(Site(template, NO_SANDBOX, Looped(careless), max_turns=9))
    first.end.set(0.0, "WalltimeEnds")
    with pytest.raises(AllocationEnds, match="WalltimeEnds"):
        await first.go()
    assert len(first.saver.bodies) == len(first.site.policy.prompts) == 1


async def test_a_suspended_loop_ends_its_turns_and_begins_none(template: ChatTemplate) -> None:
    first = Again(Site(template, NO_SANDBOX, Looped(careless), max_turns=1000))
    async with asyncio.TaskGroup() as group:
        run = group.create_task(first.go())
        await asyncio.sleep(0)
        await first.site.run.suspend(60.0)
        assert len(first.saver.bodies) == len(first.site.policy.prompts)
        run.cancel()


async def test_a_loop_may_say_that_it_cannot_be_repeated() -> None:
    plain, other = GuardedHandler("looped", cast(Any, Looped(careless))), Looped(careless)
    cast(Any, other).repeatable_loop = False
    refusing = GuardedHandler("looped", cast(Any, other))
    assert (plain.is_resumable, refusing.is_resumable) == (True, False)
    lease = cast(Lease, SimpleNamespace(resume=True, agent=AgentSpec()))
    assert why_never(lease, differs=plain.loop_differs) is None
    assert (
        why_never(lease, differs=refusing.loop_differs) == "the task kind says that its agent loop cannot be repeated"
    )
