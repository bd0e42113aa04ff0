"""Calls that want several answers (`n`), by the real client: each answer is a turn that is recorded and trained on."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from tests.support.tools import TOOLS
from tests.support.until import until

QUESTION: list[Any] = [{"role": "user", "content": "What is 3 * 4?"}]
SAYS = ["Twelve.", "It is 12.", "3 * 4 = 12"]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


def client(gateway: Any, session: str = "s1") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=f"session-{session}", max_retries=0)


def trained(session: GatewaySession) -> list[list[int]]:
    return [[t for t, m in zip(s.token_ids, s.loss_mask, strict=True) if m] for s in session.segments()]


def ids(template: ChatTemplate, text: str) -> list[int]:
    return [*template.encode(text), template.stop_ids[0]]


@pytest.mark.parametrize("kept", [0, 2])
async def test_the_answer_that_the_caller_keeps_goes_on_and_the_others_are_segments_of_their_own(
    scripted: Any, template: ChatTemplate, kept: int
) -> None:
    """In the second call a segment with sampled turns gets siblings."""
    says = ["Hm.", *SAYS, "Yes."]
    async with scripted(says) as (gateway, upstream), client(gateway) as ai:
        first = await ai.chat.completions.create(model="m", messages=QUESTION)
        messages = [*QUESTION, first.choices[0].message, {"role": "user", "content": "Well?"}]
        said = await ai.chat.completions.create(model="m", messages=messages, n=3)
        texts = [choice.message.content for choice in said.choices]
        assert ([choice.index for choice in said.choices], sorted(texts)) == ([0, 1, 2], sorted(SAYS))
        assert upstream.prompts[1] == upstream.prompts[2] == upstream.prompts[3]
        assert said.usage.prompt_tokens == len(upstream.prompts[1])
        assert said.usage.completion_tokens == sum(len(ids(template, text)) for text in SAYS)
        messages += [said.choices[kept].message, {"role": "user", "content": "Sure?"}]
        await ai.chat.completions.create(model="m", messages=messages)
        session = gateway.sessions["s1"]
        runs = [ids(template, text) for text in texts]
        runs[kept] += ids(template, "Yes.")
        runs[0] = ids(template, "Hm.") + runs[0]
        assert trained(session) == runs
        assert upstream.prompts[4][: len(upstream.prompts[1])] == upstream.prompts[1]
        assert session.segments()[kept].token_ids == [*upstream.prompts[4], *ids(template, "Yes.")]
        assert session.breaks() == {}
        assert [turn.segment for turn in session.turns()] == [0, 0, 1, 2, kept]
        assert (session.calls, session.in_flight) == (5, 0)


async def test_answers_with_calls_get_their_own_results(scripted: Any, template: ChatTemplate) -> None:
    async with scripted([CALL, "No.", "Done."]) as (gateway, _), client(gateway) as ai:
        said = await ai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS, n=2)
        kept = next(choice for choice in said.choices if choice.message.tool_calls)
        result = {"role": "tool", "tool_call_id": kept.message.tool_calls[0].id, "content": "12"}
        await ai.chat.completions.create(model="m", messages=[*QUESTION, kept.message, result], tools=TOOLS)
        session = gateway.sessions["s1"]
        assert sorted(trained(session)) == sorted([ids(template, CALL) + ids(template, "Done."), ids(template, "No.")])
        assert sorted(turn.tool_results for turn in session.turns()) == [[], [], ["12"]]
        assert session.breaks() == {}


async def test_streams_name_the_answer_of_each_piece(scripted: Any, template: ChatTemplate) -> None:
    async with scripted(SAYS, pace=0.001) as (gateway, _), client(gateway) as ai:
        asked: Any = {"model": "m", "n": 3, "stream": True, "stream_options": {"include_usage": True}}
        chats, prompts = ["", "", ""], ["", "", ""]
        stream = await ai.chat.completions.create(messages=QUESTION, **asked)
        chunks = [chunk async for chunk in stream]
        for choice in (choice for chunk in chunks for choice in chunk.choices):
            chats[choice.index] += choice.delta.content or ""
        assert chunks[-1].usage.completion_tokens == sum(len(ids(template, text)) for text in SAYS)
        ends = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason == "stop"]
        assert (sorted(chats), ends) == (sorted(SAYS), [0, 1, 2])
        stream = await ai.completions.create(prompt="one", best_of=3, **asked)
        async for chunk in stream:
            for choice in chunk.choices:
                prompts[choice.index] += choice.text
        assert sorted(prompts) == sorted(SAYS)
        assert sorted(trained(gateway.sessions["s1"])) == sorted(2 * [ids(template, text) for text in SAYS])
        assert gateway.sessions["s1"].breaks() == {}


async def test_the_tiny_policys_answers_are_those_of_their_seeds(tiny: Any) -> None:
    async with client(tiny) as ai:
        asked: Any = {"model": "m", "messages": QUESTION, "temperature": 1.3, "max_tokens": 12}
        said = await ai.chat.completions.create(**asked, seed=7, n=8)
        texts = [choice.message.content for choice in said.choices]
        assert len(set(texts)) > 1
        alone = await ai.chat.completions.create(**asked, seed=7, extra_headers={"X-Rollyard-Session": "s2"})
        assert alone.choices[0].message.content == texts[0]
        greedy = await ai.chat.completions.create(**{**asked, "temperature": 0}, n=2)
        assert len({choice.message.content for choice in greedy.choices}) == 1
        more = [*QUESTION, greedy.choices[1].message, {"role": "user", "content": "Sure?"}]
        await ai.chat.completions.create(**{**asked, "messages": more})
        session = tiny.sessions["s1"]
        assert (len(session.segments()), session.breaks()) == (10, {})


async def test_each_answer_counts_as_a_call(scripted: Any) -> None:
    limits = SessionConfig("policy", Sampling(), fixed=False, max_calls=3, max_at_once=2)
    async with scripted(SAYS, limits) as (gateway, upstream), client(gateway) as ai:
        with pytest.raises(openai.RateLimitError, match="at most 2 calls of this session"):
            await ai.chat.completions.create(model="m", messages=QUESTION, n=3)
        await ai.chat.completions.create(model="m", messages=QUESTION, n=2)
        with pytest.raises(openai.PermissionDeniedError, match="1 of its 3 model calls left"):
            await ai.chat.completions.create(model="m", messages=QUESTION, n=2)
        await ai.chat.completions.create(model="m", messages=QUESTION)
        assert (len(upstream.prompts), gateway.sessions["s1"].calls) == (3, 3)
    few = SessionConfig("policy", Sampling(), fixed=False, max_tokens=100)
    async with scripted(SAYS, few) as (gateway, upstream), client(gateway) as ai:
        with pytest.raises(openai.PermissionDeniedError, match="100 tokens"):
            await ai.chat.completions.create(model="m", messages=QUESTION, n=128)
        assert upstream.prompts == []


@pytest.mark.parametrize("n", [0, -1, 129, 10**30, 1.5, True, "2", [2]])
async def test_a_wrong_number_of_answers_is_refused(scripted: Any, n: Any) -> None:
    async with scripted(SAYS) as (gateway, upstream), client(gateway) as ai:
        with pytest.raises(openai.BadRequestError, match="`n` must be a whole number from 1 to 128"):
            await ai.chat.completions.create(model="m", messages=QUESTION, n=n)
        with pytest.raises(openai.BadRequestError, match="`n` must be a whole number from 1 to 128"):
            await ai.completions.create(model="m", prompt="x", n=n)
        with pytest.raises(openai.BadRequestError, match="`best_of` must equal `n`"):
            await ai.completions.create(model="m", prompt="x", n=2, best_of=3)
        assert upstream.prompts == []


async def test_a_caller_that_leaves_takes_all_its_answers_with_it(scripted: Any) -> None:
    async with scripted(["word " * 200], pace=0.01) as (gateway, upstream), client(gateway) as ai:
        stream = await ai.chat.completions.create(model="m", messages=QUESTION, n=4, stream=True)
        await anext(aiter(stream))
        session = gateway.sessions["s1"]
        assert session.in_flight == 4
        await stream.close()
        await until(lambda: not session.in_flight and not upstream.running)
        assert (session.calls, session.segments(), session.breaks()) == (0, [], {})
        assert len((await ai.chat.completions.create(model="m", messages=QUESTION, n=2, max_tokens=2)).choices) == 2
        assert len(session.segments()) == 2
