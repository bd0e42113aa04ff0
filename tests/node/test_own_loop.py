"""A handler's own loop: what it may decide, and that no limit and no fault can be passed over. The policy says what it was told
to; template, conversations, tools and models are real."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollyard.core.errors import EndpointLost, HandlerFailed, NodeFault, RoleModelFailed, TaskError
from rollyard.kinds.rollout import Sampling, Stage, Status
from rollyard.kinds.rollout_pool import RoleLimits
from rollyard.kinds.task import Task
from rollyard.node import own_loop
from rollyard.node.agent_run import AgentResult, LoopParts
from rollyard.node.lease_models import LeaseModels, RoleSampler
from rollyard.node.own_loop import OwnLoopRun
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import LoopAgent, Score
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.wire.node import Lease

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(__file__).resolve().parents[2]
TASK = Task.model_validate({"kind": "looped", "wish": "Count the files.", "answer": "two files"})
ASK = [{"role": "user", "content": "Go."}]
MORE = {"role": "user", "content": "Go on."}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo two"}}\n</tool_call>'
Loop = Callable[[LoopAgent], Coroutine[Any, Any, object]]


class Told:
    """A policy that says these texts, one a turn, and raises the errors among them."""

    context: int | None = None

    def __init__(self, template: ChatTemplate, *texts: str | Exception) -> None:
        self.failover = SimpleNamespace(limit=None)
        self.prompts: list[list[int]] = []
        self.asked: list[Sampling] = []
        self._template, self._texts = template, iter(texts)

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.prompts.append(list(prompt_ids))
        self.asked.append(sampling)
        text = next(self._texts, "more")
        await asyncio.sleep(0)
        if isinstance(text, Exception):
            raise text
        ids = [*self._template.encode(text), self._template.stop_ids[0]]
        return Sampled(ids, [-0.25 * len(self.prompts)] * len(ids), ["v1"] * len(ids), "stop")


class Looped:
    eval_needs_sandbox = False

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def tools(self, task: Task) -> list[str]:
        return ["bash"]

    def prompt(self, task: Task) -> list[dict[str, Any]]:
        return ASK

    async def init(self, task: Task, sandbox: Sandbox) -> None: ...

    async def agent_loop(self, task: Task, sandbox: Sandbox, agent: LoopAgent) -> None:
        await self._loop(agent)

    async def collect(self, task: Task, sandbox: Sandbox) -> dict[str, Any]:
        return {}

    async def evaluate(self, task: Task, evaluation: Any) -> Score:
        return Score(1.0)


async def no_judge(role: str) -> RoleSampler:
    raise NodeFault("there is no judge here")


class Site:
    """One run of a loop."""

    def __init__(
        self, template: ChatTemplate, sandbox: Any, handler: Any, *texts: str | Exception, max_turns: int = 20
    ) -> None:
        lease = Lease.model_validate(
            {
                "namespace": "default", "id": "r", "fence": 1, "attempt": 1, "sample_index": 0, "sampling": {"max_tokens": 500},
                "agent": {"max_turns": max_turns, "tool_parser": "hermes"}, "budgets": {}, "task": TASK.model_dump(),
            }
        )  # fmt: skip
        self.policy = Told(template, *texts)
        self.ended: list[int] = []

        async def turn_ended(turn: int) -> None:
            self.ended.append(turn)

        models = LeaseModels({"judge": RoleLimits()}, no_judge, Stage.RUN)
        parts = LoopParts(lease, sandbox, template, ["bash"])
        self.run = OwnLoopRun(GuardedHandler("looped", handler), parts, cast(Any, self.policy), models, turn_ended)

    async def go(self, budget: float = 60.0) -> AgentResult:
        return await self.run.run(budget)


def documented() -> Any:
    """Return the handler of the documentation."""
    page = (ROOT / "docs/task-handlers.md").read_text()
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "agent_loop" in text]
    names: dict[str, Any] = {}
    exec(block, names)
    return names["PlannedHandler"]()


async def test_the_documented_loop_plans_acts_and_reflects_and_every_token_is_recorded(
    template: ChatTemplate, shared_sandbox: Sandbox
) -> None:
    site = Site(
        template, shared_sandbox, documented(), "1. count", CALL, "three files", "count again", "two files", "done"
    )
    found = await site.go()
    assert (found.status, found.cut_short, found.breaks) == (Status.COMPLETED, None, {})
    turns = found.turns
    assert [(turn.segment, turn.text) for turn in turns] == [
        (0, "1. count"), (1, CALL), (1, "three files"), (0, "count again"), (1, "two files"), (0, "done")
    ]  # fmt: skip
    assert (turns[1].tool_results, turns[1].tool_calls[0]["name"]) == (["two"], "bash")
    for number, (turn, prompt) in enumerate(zip(turns, site.policy.prompts, strict=True), start=1):
        segment, end = found.segments[turn.segment], turn.prompt_length + turn.response_length
        assert segment.token_ids[: turn.prompt_length] == prompt, (
            "the prompt is a part of the segment as it was sampled after"
        )
        answer = slice(turn.prompt_length, end)
        assert segment.token_ids[answer] == [*template.encode(turn.text), template.stop_ids[0]]
        assert segment.logprobs[answer] == [-0.25 * number] * turn.response_length
        assert segment.loss_mask[answer] == [1] * turn.response_length
    assert sum(sum(one.loss_mask) for one in found.segments) == sum(turn.response_length for turn in turns)
    assert "bash" not in template.decode(site.policy.prompts[0]), "the planner has no tools"
    assert "bash" in template.decode(site.policy.prompts[1])
    assert [sampling.max_tokens for sampling in site.policy.asked] == [200, 500, 500, 100, 500, 100]
    assert site.ended == [1, 2, 3, 4, 5, 6]
    score = await documented().evaluate(TASK, SimpleNamespace(turns=turns))
    assert score.reward == 1.0


async def test_conversations_may_go_on_at_the_same_time(template: ChatTemplate) -> None:
    async def both(agent: LoopAgent) -> None:
        async def one(name: str) -> None:
            chat = agent.conversation([{"role": "user", "content": name}], tools=[])
            await chat.sample()
            chat.add(MORE)
            await chat.sample()

        async with asyncio.TaskGroup() as group:
            group.create_task(one("first"))
            group.create_task(one("second"))

    site = Site(template, None, Looped(both), "a", "b", "c", "d")
    found = await site.go()
    assert (len(found.segments), sorted(turn.segment for turn in found.turns)) == (2, [0, 0, 1, 1])
    for turn in found.turns:
        ids = found.segments[turn.segment].token_ids[turn.prompt_length :][: turn.response_length]
        assert template.decode(ids[:-1]) == turn.text


class Endless:
    """A loop that goes on in spite of whatever is raised, until the test releases it."""

    def __init__(self) -> None:
        self._released = False

    async def __call__(self, agent: LoopAgent) -> None:
        self._task = asyncio.current_task()
        while not self._released:
            try:
                await careless(agent)
                await agent.conversation(ASK).sample()
            except BaseException:  # noqa: BLE001 - a careless handler does this
                pass

    async def release(self) -> None:
        self._released = True
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})


async def careless(agent: LoopAgent) -> None:
    """Sample for ever, and take every exception for the end."""
    chat = agent.conversation(ASK)
    try:
        while True:
            await chat.sample()
            chat.add(MORE)
    except BaseException:  # noqa: BLE001 - a careless handler does this
        return


async def test_a_loop_that_never_ends_is_ended_by_the_limit_of_turns(template: ChatTemplate) -> None:
    found = await Site(template, None, Looped(careless), max_turns=3).go()
    assert (found.status, len(found.turns)) == (Status.TRUNCATED, 3)
    assert found.cut_short == "the agent used all of its turns; `agent.max_turns` is 3"


async def test_a_loop_that_never_ends_is_ended_by_the_budget(template: ChatTemplate) -> None:
    seen = []

    async def waiting(agent: LoopAgent) -> None:
        await agent.conversation(ASK).sample()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("end")

    found = await Site(template, None, Looped(waiting)).go(budget=0.5)
    assert (found.status, found.overdue, found.cut_short) == (Status.TRUNCATED, True, "RUN's budget of 0.5 s ended")
    assert (len(found.turns), seen) == (1, ["end"])


@pytest.mark.parametrize("fault", [None, EndpointLost("it is gone")])
async def test_a_loop_that_refuses_its_end_fails(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> None:
    monkeypatch.setattr(own_loop, "END_TRIES", 1)
    loop = Endless()
    site = Site(template, None, Looped(loop), "a", *filter(None, [fault]), max_turns=2)
    with pytest.raises(HandlerFailed, match=r"let asyncio\.CancelledError pass"):
        await site.go()
    turns = len(await site.run.turns())
    await loop.release()
    assert turns == len(await site.run.turns()) == (2 if fault is None else 1), "nothing is sampled any more"


async def test_an_exception_names_the_line_and_keeps_the_turns(template: ChatTemplate) -> None:
    async def wrong(agent: LoopAgent) -> None:
        turn = await agent.conversation(ASK).sample()
        raise KeyError(turn.text)

    site = Site(template, None, Looped(wrong), "topic")
    with pytest.raises(
        HandlerFailed, match=r"agent_loop\(\) of task kind 'looped' raised KeyError: 'topic' \(.*:\d+\)"
    ):
        await site.go()
    assert [turn.text for turn in (await site.run.result()).turns] == ["topic"]


async def test_no_loop_swallows_the_fault_of_an_endpoint(template: ChatTemplate) -> None:
    site = Site(template, None, Looped(careless), "a", EndpointLost("it is gone"))
    with pytest.raises(EndpointLost, match="it is gone"):
        await site.go()
    assert [turn.text for turn in await site.run.turns()] == ["a"]


async def test_no_loop_swallows_the_fault_of_a_judge(template: ChatTemplate) -> None:
    async def judged(agent: LoopAgent) -> None:
        turn = await agent.conversation(ASK).sample()
        try:
            await agent.models.judge([{"role": "user", "content": turn.text}])
        except Exception:  # noqa: BLE001 - the handler's mistake
            return

    with pytest.raises((RoleModelFailed, NodeFault), match="no judge"):
        await Site(template, None, Looped(judged)).go()


async def test_a_cancelled_lease_ends_the_loop_with_its_calls(template: ChatTemplate) -> None:
    seen = asyncio.Event()

    async def waiting(agent: LoopAgent) -> None:
        await agent.conversation(ASK).sample()
        try:
            seen.set()
            await asyncio.Event().wait()
        finally:
            seen.clear()

    site = Site(template, None, Looped(waiting))
    run = asyncio.create_task(site.go())
    await seen.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not seen.is_set(), "its block `finally` has run"


async def test_what_a_loop_gets_wrong_is_named(template: ChatTemplate, shared_sandbox: Sandbox) -> None:
    wrong: list[str] = []

    async def careless_calls(agent: LoopAgent) -> None:
        chat = agent.conversation(ASK)
        first = asyncio.create_task(chat.sample())
        await asyncio.sleep(0)
        for call in (
            chat.sample(), chat.call_tools(), chat.sample(max_tokens=0), _begin(agent, "hello"), _begin(agent, ASK, ["grep"]),
        ):  # fmt: skip
            try:
                wrong.append(str(await call))
            except TaskError as error:
                wrong.append(str(error))
        await first

    await Site(template, shared_sandbox, Looped(careless_calls)).go()
    assert wrong == [
        "a conversation does one thing at a time; begin another one with agent.conversation()",
        "[]",
        "sample(max_tokens=0): give at least 1",
        "agent.conversation() takes a list of messages such as {'role': 'user', 'content': '...'}",
        "agent.conversation() knows no tool 'grep'; tools() returned ['bash']",
    ]
    with pytest.raises(TypeError, match=r"drives its conversations alone: delete environment\(\)"):
        GuardedHandler("looped", type("Both", (Looped,), {"environment": None})(careless))


async def _begin(agent: LoopAgent, messages: Any, tools: Sequence[str] | None = None) -> None:
    agent.conversation(messages, tools)
