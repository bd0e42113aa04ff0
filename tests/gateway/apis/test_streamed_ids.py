"""Streams with tools keep every sampled id: those of control tokens too, however the engine cuts its chunks."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from rollyard.gateway.session.session import GatewaySession
from rollyard.tokens.chat_template import ChatTemplate
from tests.support.tools import TOOLS
from tests.support.until import until

QUESTION: list[Any] = [{"role": "user", "content": "What is 3 * 4?"}]
CALL = 'Let me see.\n<tool_call>\n{"name": "bash", "arguments": {"command": "expr 3 \\\\* 4"}}\n</tool_call>'
SIZES = {"one id": (1,), "seven ids": (7,), "none, one and seven ids": (0, 1, 7), "all ids": (10_000,)}
ASKED: Any = {"model": "m", "messages": QUESTION, "tools": TOOLS}


def client(gateway: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="session-s1", max_retries=0)


async def asked(ai: openai.AsyncOpenAI, *, stream: bool) -> tuple[Any, str]:
    """Ask for an answer. Return its usage, which only the last chunk of a stream has, and its finish reason."""
    if not stream:
        answer = await ai.chat.completions.create(**ASKED)
        return answer.usage, answer.choices[0].finish_reason
    made = await ai.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in made]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return chunks[-1].usage, [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1]


def sampled(session: GatewaySession) -> list[list[int]]:
    return [[t for t, m in zip(s.token_ids, s.loss_mask, strict=True) if m] for s in session.segments()]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
async def test_the_stored_ids_are_those_of_the_usage_and_of_the_text(
    scripted: Any, template: ChatTemplate, sizes: Any, stream: bool
) -> None:
    async with scripted([CALL], sizes=sizes) as (gateway, _), client(gateway) as ai:
        usage, finish_reason = await asked(ai, stream=stream)
        assert finish_reason == "tool_calls"
        session = gateway.sessions["s1"]
        (ids,) = sampled(session)
        assert ids == [*template.encode(CALL), template.stop_ids[0]]
        assert (usage.completion_tokens, template.decode(ids[:-1])) == (len(ids), CALL)
        (segment,) = session.segments()
        assert usage.prompt_tokens + usage.completion_tokens == len(segment.token_ids)
        assert [p is not None for p, m in zip(segment.logprobs, segment.loss_mask, strict=True) if m] == [True] * len(
            ids
        )


async def test_two_streamed_answers_with_calls_keep_their_ids(scripted: Any, template: ChatTemplate) -> None:
    async with scripted([CALL, "No."], sizes=(0, 1, 7)) as (gateway, _), client(gateway) as ai:
        stream = await ai.chat.completions.create(**ASKED, n=2, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        meant = [[*template.encode(text), template.stop_ids[0]] for text in (CALL, "No.")]
        assert sorted(sampled(gateway.sessions["s1"])) == sorted(meant)
        assert chunks[-1].usage.completion_tokens == sum(map(len, meant))


async def test_of_a_caller_that_leaves_after_five_chunks_nothing_is_stored(
    scripted: Any, template: ChatTemplate
) -> None:
    says = ["word " * 400, CALL]
    async with scripted(says, pace=0.02) as (gateway, upstream), client(gateway) as ai:
        stream = await ai.chat.completions.create(**ASKED, stream=True)
        for _ in range(5):
            await anext(aiter(stream))
        session = gateway.sessions["s1"]
        await stream.close()
        await until(lambda: not session.in_flight and not upstream.running)
        assert (session.segments(), session.turns(), session.breaks()) == ([], [], {})
        await ai.chat.completions.create(**ASKED)
        assert sampled(session) == [[*template.encode(CALL), template.stop_ids[0]]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_engine_without_ids_is_refused_and_its_text_is_no_turn(scripted: Any, stream: bool) -> None:
    async with scripted([CALL], returns_ids=False) as (gateway, _), client(gateway) as ai:
        with pytest.raises(openai.APIError, match="token ids"):
            await asked(ai, stream=stream)
        session = gateway.sessions["s1"]
        assert (session.segments(), session.turns(), session.in_flight) == ([], [], 0)


LS = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
THOUGHT = {
    "a call in thoughts that are not closed": (f"<think>plan {LS}", "<think>plan", 1),
    "a tag in thoughts": ("<think>the tag <tool_call> opens a call</think>done", ..., 0),
    "a call in thoughts": (f"<think>maybe {LS}</think>No.", ..., 0),
    "a call in thoughts that the prompt opened": (f"maybe {LS}</think>No.", ..., 0),
    "half thoughts": ("<think>half", ..., 0),
    "thoughts twice, then a call": (f"<think>a</think><think>b</think>{LS}", "<think>a</think><think>b</think>", 1),
    "thoughts twice": ("<think>a</think>x<think>b</think>y", ..., 0),
    "nothing": ("", ..., 0),
}
"""Turn -> (its text, its content as the caller gets it or ... for all of the text, number of calls)."""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("turn", THOUGHT)
async def test_thoughts_hide_no_call_and_make_none(
    scripted: Any, template: ChatTemplate, turn: str, stream: bool
) -> None:
    text, content, count = THOUGHT[turn]
    async with scripted([text]) as (gateway, _), client(gateway) as ai:
        if stream:
            deltas = [
                c.delta async for chunk in await ai.chat.completions.create(**ASKED, stream=True) for c in chunk.choices
            ]
            told = "".join(delta.content or "" for delta in deltas)
            calls = ["".join(call.function.arguments for delta in deltas for call in delta.tool_calls or ())]
        else:
            (choice,) = (await ai.chat.completions.create(**ASKED)).choices
            told, calls = choice.message.content or "", [c.function.arguments for c in choice.message.tool_calls or ()]
        assert (told, [call for call in calls if call]) == (
            text if content is ... else content,
            ['{"command": "ls"}'] * count,
        )
        assert sampled(gateway.sessions["s1"]) == [[*template.encode(text), template.stop_ids[0]]]
