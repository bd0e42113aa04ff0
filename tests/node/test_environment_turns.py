"""The loop with an environment that replies: the policy says what it was told to, template and conversation are real."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rollyard.core.errors import HandlerFailed, StageTimeout
from rollyard.kinds.rollout import AgentSpec, Sampling, Stage, Status
from rollyard.node import agent_run
from rollyard.node.agent_loop import AgentProgress, run_agent
from rollyard.node.lease_models import LeaseModels
from rollyard.node.tool_execution import Tools
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Environment, Reply
from rollyard.tasks.guarded_handler import GuardedEnvironment
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.tool_calls import parser_for
from rollyard.trajectory import Turn
from tests.support.template_oracle import Oracle
from tests.tokens.test_refused_turns import ALTERNATING

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo hi"}}\n</tool_call>'


class Told:
    """A policy that says these texts, one a turn; the last one is cut off if it ends with an ellipsis."""

    context: int | None = None

    def __init__(self, template: ChatTemplate, *texts: str) -> None:
        self._template, self._texts = template, iter(texts)

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        text = next(self._texts)
        cut = text.endswith("…")
        ids = self._template.encode(text) + ([] if cut else [self._template.stop_ids[0]])
        return Sampled(ids, [-0.5] * len(ids), ["v1"] * len(ids), "length" if cut else "stop")


class Replies(Environment):
    """Replies as it was told to, and keeps the turns that it was shown."""

    def __init__(self, *replies: Reply | None, every_turn: bool = False) -> None:
        self.opening = [{"role": "user", "content": "Which number?"}]
        self.every_turn = every_turn
        self.shown: list[Turn] = []
        self._replies = iter(replies)

    async def reply(self, turn: Turn) -> Reply | None:
        self.shown.append(turn)
        return next(self._replies)


async def play(
    model_dir: Path, environment: Replies, *texts: str, sandbox: Sandbox | None = None, agent: AgentSpec | None = None
) -> tuple[AgentProgress, ChatTemplate]:
    template = ChatTemplate.load(model_dir)
    parser = parser_for(template, None, [])
    reads = parser if sandbox is not None else None
    run = AgentProgress(Conversation(template, environment.opening, parser=reads))
    tools: Any = Tools([] if sandbox is None else ["bash"], sandbox, 30.0, parser.form)  # type: ignore[arg-type]
    await run_agent(run, Told(template, *texts), tools, agent or AgentSpec(), Sampling(), 0, environment)
    return run, template


async def test_observations_are_unsampled_tokens_and_rewards_stand_with_their_turns(model_dir: Path) -> None:
    environment = Replies(Reply("higher", 0.25), Reply("lower", None), Reply("won", 1.0, done=True))
    run, template = await play(model_dir, environment, "5", CALL, "7")
    assert run.status is Status.COMPLETED
    assert [(t.text, t.observation, t.reward) for t in run.turns] == [
        ("5", "higher", 0.25), (CALL, "lower", None), ("7", "won", 1.0)
    ]  # fmt: skip
    assert all(set(t.timings) == {"model", "tools", "environment"} for t in run.turns)
    (segment,) = run.conversation.segments()
    mask = [0] * len(segment.token_ids)
    for turn in run.turns:
        mask[turn.prompt_length : turn.prompt_length + turn.response_length] = [1] * turn.response_length
    assert segment.loss_mask == mask
    messages = list(environment.opening)
    for turn in run.turns:
        assert template.decode(segment.token_ids[: turn.prompt_length]) == template.render(messages, [], True)
        messages += [{"role": "assistant", "content": turn.text}, {"role": "user", "content": turn.observation}]


async def test_without_a_reply_the_conversation_ends(model_dir: Path) -> None:
    run, _ = await play(model_dir, Replies(Reply("go on"), None), "5", "That is all.")
    assert (run.status, [t.observation for t in run.turns]) == (Status.COMPLETED, ["go on", None])


async def test_a_reward_alone_adds_no_message_and_without_a_call_it_ends_the_conversation(
    model_dir: Path, sandbox: Sandbox
) -> None:
    environment = Replies(Reply(reward=0.5), Reply(reward=1.0), every_turn=True)
    run, template = await play(model_dir, environment, CALL, "hi", sandbox=sandbox)
    assert (run.status, [(t.observation, t.reward) for t in run.turns]) == (
        Status.COMPLETED,
        [(None, 0.5), (None, 1.0)],
    )
    (segment,) = run.conversation.segments()
    result = {"role": "tool", "content": "hi"}
    asked = [*environment.opening, {"role": "assistant", "content": CALL}, result]
    assert template.decode(segment.token_ids[: run.turns[1].prompt_length]) == template.render(asked, [], True)


async def test_a_turn_that_was_cut_off_gets_its_reward_and_ends_the_run(model_dir: Path) -> None:
    run, _ = await play(model_dir, Replies(Reply("higher", 0.25), Reply("no number", -1.0)), "5", "well…")
    assert (run.status, [t.reward for t in run.turns]) == (Status.TRUNCATED, [0.25, -1.0])


async def test_the_last_allowed_turn_gets_its_reward(model_dir: Path) -> None:
    run, _ = await play(model_dir, Replies(Reply("higher", 0.25)), "5", agent=AgentSpec(max_turns=1))
    assert (run.status, [t.reward for t in run.turns]) == (Status.TRUNCATED, [0.25])


@pytest.mark.parametrize("every_turn", [False, True])
async def test_tool_calls_are_the_sandboxs_and_the_environment_may_see_them(
    model_dir: Path, sandbox: Sandbox, every_turn: bool
) -> None:
    replies = [Reply("noted", 0.1)] if every_turn else []
    environment = Replies(*replies, Reply("right", 1.0, done=True), every_turn=every_turn)
    run, template = await play(model_dir, environment, CALL, "hi", sandbox=sandbox)
    assert run.status is Status.COMPLETED
    assert [t.tool_results for t in run.turns] == [["hi"], []]
    assert [t.reward for t in run.turns] == [0.1 if every_turn else None, 1.0]
    assert environment.shown[0].tool_results == (["hi"] if every_turn else [])
    (segment,) = run.conversation.segments()
    assert ("noted" in template.decode(segment.token_ids)) == every_turn


async def test_a_reply_behind_results_ends_the_last_result_where_the_template_refuses_a_user_there(
    sandbox: Sandbox,
) -> None:
    """Ministral's template refuses a user's message between a result and the answer."""
    made = Oracle(ALTERNATING)
    template = ChatTemplate(made.tokenizer, made.stop_ids)
    environment = Replies(Reply("noted"), Reply("again"), Reply("right", 1.0, done=True), every_turn=True)
    run = AgentProgress(Conversation(template, environment.opening, parser=parser_for(template, None, [])))
    tools: Any = Tools(["bash"], sandbox, 30.0, run.conversation.parser.form)  # type: ignore[union-attr]
    await run_agent(run, Told(template, CALL, "5", "6"), tools, AgentSpec(), Sampling(), 0, environment)
    assert [(t.tool_results, t.observation) for t in run.turns] == [(["hi"], "noted"), ([], "again"), ([], "right")]
    (segment,) = run.conversation.segments()
    text = template.decode(segment.token_ids)
    assert "tool\nhi\nnoted<|im_end|>" in text
    assert "user\nagain<|im_end|>" in text


class Slow(Replies):
    """Replies after so many seconds."""

    seconds = 0.05

    async def reply(self, turn: Turn) -> Reply | None:
        await asyncio.sleep(self.seconds)
        return await super().reply(turn)


class LastMoment(Told):
    """A policy whose turns end just before the limit does."""

    limit: asyncio.Timeout

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        sampled = await super().sample(prompt_ids, sampling)
        self.limit.reschedule(asyncio.get_running_loop().time() + 0.01)
        return sampled


async def play_to_the_limit(model_dir: Path, environment: Replies) -> AgentProgress:
    template = ChatTemplate.load(model_dir)
    parser, policy = parser_for(template, None, []), LastMoment(template, "5", "7")
    run = AgentProgress(Conversation(template, environment.opening))
    tools: Any = Tools([], None, 30.0, parser.form)  # type: ignore[arg-type]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3600) as policy.limit:
            models = LeaseModels({}, cast(Any, None), Stage.RUN)
            guarded = GuardedEnvironment("quiz", environment)
            replies = agent_run._UncutReplies(guarded, policy.limit, 3600, models, tools)
            await run_agent(run, policy, tools, AgentSpec(), Sampling(), 0, replies)
    return run


async def test_the_budget_of_run_ends_after_a_reply_and_the_last_turn_has_its_reward(model_dir: Path) -> None:
    run = await play_to_the_limit(model_dir, Slow(Reply("on", 0.5)))
    assert (run.status, [t.reward for t in run.turns]) == (Status.TRUNCATED, [0.5])


async def test_an_environment_that_never_replies_is_a_fault_of_the_infrastructure(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_run, "REPLY_SECONDS", 0.02)
    monkeypatch.setattr(Slow, "seconds", 600.0)
    with pytest.raises(StageTimeout, match=r"did not reply within RUN's budget of 3600 s and 0.02 s more"):
        await play_to_the_limit(model_dir, Slow())


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda: Reply("x", float("inf")), "whose reward is None or a finite number"),
        (lambda: Reply("\ud800"), "a Reply whose text is None or a text"),
        (lambda: "higher", "None, or a Reply"),
        (lambda: 1 // 0, r"reply\(\) of task kind 'quiz' raised ZeroDivisionError: .*test_environment_turns.py:\d+"),
    ],
)
async def test_a_wrong_reply_is_the_environments_fault(reply: Any, message: str) -> None:
    class Wrong(Environment):
        async def reply(self, turn: Turn) -> Any:
            return reply()

    turn = Turn(segment=0, prompt_length=1, response_length=1, text="", finish_reason="stop")
    with pytest.raises(HandlerFailed, match=message):
        await GuardedEnvironment("quiz", Wrong()).reply(turn)


async def test_an_environment_that_fails_to_close_changes_no_result(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Replies):
        async def close(self) -> None:
            raise OSError("busy")

    await GuardedEnvironment("quiz", Stuck()).close()
    assert "failed to close" in caplog.text
