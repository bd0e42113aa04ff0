"""A rollout that goes on from a turn of another: the same prompt to the token, and nothing of the other is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from rollyard.core.errors import SnapshotUnusable
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import AgentSpec, ForkPoint, Sampling, Status
from rollyard.node.agent_loop import AgentProgress, run_agent
from rollyard.node.fork import go_on_from
from rollyard.tasks.own_tools import ToolResult
from rollyard.tasks.tool_schemas import SCHEMAS
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.tool_calls import parser_for
from rollyard.trajectory import Outcome

QUESTION = [{"role": "user", "content": "What is there?"}]
CALLS = [f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "echo {n}"}}}}\n</tool_call>' for n in range(3)]


class Told:
    """A policy that says these texts, one a turn."""

    context: int | None = None

    def __init__(self, template: ChatTemplate, *texts: str) -> None:
        self._turns = iter([[*template.encode(text), template.stop_ids[0]] for text in texts])
        self.prompts: list[list[int]] = []

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.prompts.append(list(prompt_ids))
        ids = next(self._turns)
        return Sampled(ids, [-0.5] * len(ids), ["v1"] * len(ids), "stop")


class Echo:
    """Tools whose results name the call."""

    offered = ("bash",)

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(f"result of {arguments['command']}")


def begun(template: ChatTemplate, question: Any = QUESTION) -> AgentProgress:
    schemas = [SCHEMAS["bash"]]
    return AgentProgress(Conversation(template, question, schemas, parser=parser_for(template, None, schemas)))


async def go(run: AgentProgress, template: ChatTemplate, *texts: str) -> tuple[Outcome, Told]:
    policy = Told(template, *texts)
    await run_agent(run, policy, cast(Any, Echo()), AgentSpec(), Sampling(), 0)
    return Outcome(status=Status.COMPLETED, segments=run.conversation.segments(), turns=run.turns), policy


def point(turn: int, rollout: str = "parent") -> ForkPoint:
    return ForkPoint(rollout=rollout, turn=turn)


async def test_the_next_prompt_is_the_parents_and_its_tokens_are_context(template: ChatTemplate) -> None:
    parent, told = await go(begun(template), template, *CALLS, "two")
    for turn in (1, 2, 3):
        fork = begun(template)
        go_on_from(fork, [(point(turn), parent)])
        own, policy = await go(fork, template, "another end")
        assert policy.prompts[0] == told.prompts[turn]
        (segment,) = own.segments
        prefix = len(told.prompts[turn])
        assert segment.token_ids[:prefix] == told.prompts[turn]
        assert segment.prompt_length == prefix
        assert segment.loss_mask == [0] * prefix + [1] * (len(segment.token_ids) - prefix)
        assert segment.logprobs[:prefix] == segment.weights_version[:prefix] == [None] * prefix
        assert [(one.segment, one.prompt_length, one.text) for one in own.turns] == [(0, prefix, "another end")]


async def test_a_fork_of_a_fork(template: ChatTemplate) -> None:
    first, _ = await go(begun(template), template, *CALLS, "end")
    second = begun(template)
    go_on_from(second, [(point(1, "first"), first)])
    outcome, told = await go(second, template, CALLS[2], "end")
    third = begun(template)
    go_on_from(third, [(point(1, "first"), first), (point(1, "second"), outcome)])
    own, policy = await go(third, template, "end")
    assert policy.prompts[0] == told.prompts[1]
    assert sum(own.segments[0].loss_mask) == own.turns[0].response_length


async def test_a_malformed_call_is_repeated_with_its_answer(template: ChatTemplate) -> None:
    wrong = '<tool_call>\n{"name": "bash", "arguments": \n</tool_call>'
    parent, told = await go(begun(template), template, wrong, CALLS[0], "end")
    fork = begun(template)
    go_on_from(fork, [(point(1), parent)])
    _, policy = await go(fork, template, "end")
    assert policy.prompts[0] == told.prompts[1]


async def test_refusals(template: ChatTemplate) -> None:
    parent, _ = await go(begun(template), template, *CALLS, "end")
    with pytest.raises(
        SnapshotUnusable, match="turn 4 of rollout 'parent' ended the conversation; fork from an earlier turn"
    ):
        go_on_from(begun(template), [(point(4), parent)])
    with pytest.raises(SnapshotUnusable, match="has only 4 turns; 5 was asked for"):
        go_on_from(begun(template), [(point(5), parent)])
    with pytest.raises(
        SnapshotUnusable, match=r"prompt of turn 1 .* other tokens now: the tokenizer, the chat template"
    ):
        go_on_from(begun(template, [{"role": "user", "content": "Another?"}]), [(point(1), parent)])
    cut = evolve(parent, turns=[evolve(parent.turns[0], finish_reason="length")])
    with pytest.raises(SnapshotUnusable, match=r"turn 1 .* ended the conversation"):
        go_on_from(begun(template), [(point(1), cut)])
