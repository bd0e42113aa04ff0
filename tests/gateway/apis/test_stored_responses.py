"""Responses that continue an earlier one by its id, by OpenAI's client: the same segment as with the whole conversation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from rollyard.gateway.session import stored_responses
from rollyard.tokens.chat_template import ChatTemplate
from tests.support.model_clients import frameworks
from tests.support.tools import TOOLS

CALL = 'Let me see.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
SAYS = [CALL, "It is 12.", "Yes."]
ASKED: dict[str, Any] = {
    "model": "m",
    "instructions": "Solve it.",
    "tools": [{"type": "function", **TOOLS[0]["function"]}],
}


def client(gateway: Any, session: str = "s1") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=f"session-{session}", max_retries=0)


async def by_id(ai: openai.AsyncOpenAI, streamed: bool) -> list[Any]:
    """Three turns; each call has only what is new."""

    async def ask(given: Any, previous: str | None) -> Any:
        if not streamed:
            return await ai.responses.create(input=given, previous_response_id=previous or openai.omit, **ASKED)
        more: Any = {"previous_response_id": previous} if previous else {}
        async with ai.responses.stream(input=given, **more, **ASKED) as stream:
            return await stream.get_final_response()

    first = await ask("What is 3 * 4?", None)
    output = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "12"}
    second = await ask([output], first.id)
    return [first, second, await ask("Sure?", second.id)]


async def whole(ai: openai.AsyncOpenAI) -> None:
    """The same turns; each call has everything."""
    items: list[Any] = [{"role": "user", "content": "What is 3 * 4?"}]
    first = await ai.responses.create(input=items, store=False, **ASKED)
    call: Any = first.output[1]
    items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "12"}]
    second = await ai.responses.create(input=items, store=False, **ASKED)
    items += [*second.output, {"role": "user", "content": "Sure?"}]
    await ai.responses.create(input=items, store=False, **ASKED)


@pytest.mark.parametrize("streamed", [False, True])
async def test_ids_of_earlier_responses_give_the_segment_of_the_whole_conversation(
    scripted: Any, streamed: bool
) -> None:
    async with scripted(SAYS) as (gateway, upstream), client(gateway) as ai, client(gateway, "s2") as other:
        first, second, third = await by_id(ai, streamed)
        await whole(other)
        assert upstream.prompts[:3] == upstream.prompts[3:]
        one, two = gateway.sessions["s1"], gateway.sessions["s2"]
        assert one.segments() == two.segments()
        assert len(one.segments()) == 1
        assert one.breaks() == two.breaks() == {}
        assert [turn.tool_results for turn in one.turns()] == [["12"], [], []]
        assert (first.previous_response_id, second.previous_response_id) == (None, first.id)
        assert (third.store, third.output_text) == (True, "Yes.")


async def test_instructions_are_those_of_each_call(scripted: Any, template: ChatTemplate) -> None:
    async with scripted(SAYS) as (gateway, upstream), client(gateway) as ai:
        first = await ai.responses.create(model="m", instructions="Be brief.", input="One?")
        await ai.responses.create(model="m", input="Two?", previous_response_id=first.id)
        said = {"role": "assistant", "content": SAYS[0]}
        messages = [{"role": "user", "content": "One?"}, said, {"role": "user", "content": "Two?"}]
        assert template.decode(upstream.prompts[1]) == template.render(messages, [], True)


async def test_a_response_is_read_and_deleted_by_its_id(scripted: Any) -> None:
    async with scripted(SAYS) as (gateway, _), client(gateway) as ai, client(gateway, "s2") as other:
        first = await ai.responses.create(input="What is 3 * 4?", metadata={"a": "b"}, **ASKED)
        assert (await ai.responses.retrieve(first.id)).model_dump() == first.model_dump()
        with pytest.raises(openai.BadRequestError, match="cannot be streamed"):
            await ai.responses.retrieve(first.id, stream=True)
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(first.id)
        assert await ai.responses.delete(first.id) is None  # type: ignore[func-returns-value]
        with pytest.raises(openai.NotFoundError, match="not found"):
            await ai.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError, match="not found"):
            await ai.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError, match="send the whole conversation") as refused:
            await ai.responses.create(input="x", previous_response_id=first.id, **ASKED)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
        assert gateway.sessions["s1"].calls == 1, "its turn stays"


async def test_only_stored_responses_of_the_same_session_are_continued(scripted: Any) -> None:
    async with scripted(SAYS) as (gateway, upstream), client(gateway) as ai, client(gateway, "s2") as other:
        stored = await ai.responses.create(model="m", input="x")
        passed = await ai.responses.create(model="m", input="y", store=False)
        assert passed.store is False
        for caller, id in ((other, stored.id), (ai, passed.id), (ai, "resp_none"), (ai, ""), (ai, "x" * 100_000)):
            with pytest.raises(openai.BadRequestError, match="not found") as refused:
                await caller.responses.create(model="m", input="z", previous_response_id=id)
            assert len(refused.value.message) < 1000
        for wrong in ({"previous_response_id": 5}, {"previous_response_id": ["x"]}, {"store": "yes"}):
            with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
                await ai.responses.create(model="m", input="z", extra_body=wrong)
        with pytest.raises(openai.BadRequestError, match="must not be empty"):
            await ai.responses.create(model="m", input=[], previous_response_id=stored.id)
        assert len(upstream.prompts) == 2


async def test_calls_that_continue_one_response_at_the_same_time_are_branches(scripted: Any) -> None:
    """The same as if each call had the whole conversation."""
    async with scripted(["One.", *["Two."] * 8, "Three."], pace=0.01) as (gateway, _), client(gateway) as ai:
        first = await ai.responses.create(model="m", input="x")
        said = await asyncio.gather(
            *(ai.responses.create(model="m", input=str(i), previous_response_id=first.id) for i in range(8))
        )
        last = await ai.responses.create(model="m", input="z", previous_response_id=said[3].id)
        assert last.output_text == "Three."
        session = gateway.sessions["s1"]
        assert len(session.segments()) == 8
        assert session.breaks() == {"HistoryChanged": 7}
        assert sum(sum(segment.loss_mask) for segment in session.segments()) == sum(
            turn.response_length for turn in session.turns()
        )


async def test_old_bodies_are_dropped_and_their_conversation_goes_on(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_responses, "MAX_BODIES", 2000)
    async with scripted(["Hm."]) as (gateway, _), client(gateway) as ai:
        said = [await ai.responses.create(model="m", input="0", metadata={"k": str(i)}) for i in range(9)]
        with pytest.raises(openai.NotFoundError):
            await ai.responses.retrieve(said[0].id)
        assert (await ai.responses.retrieve(said[-1].id)).id == said[-1].id
        assert (await ai.responses.create(model="m", input="1", previous_response_id=said[0].id)).output_text == "Hm."


async def test_the_tiny_policy_continues_by_id(tiny: Any) -> None:
    async with client(tiny) as ai:
        asked: Any = {"model": "m", "max_output_tokens": 12, "temperature": 1.3}
        first = await ai.responses.create(input="What is 3 * 4?", **asked)
        second = await ai.responses.create(input="Sure?", previous_response_id=first.id, **asked)
        await ai.responses.create(input="Why?", previous_response_id=second.id, **asked)
        session = tiny.sessions["s1"]
        (segment,) = session.segments()
        assert sum(segment.loss_mask) == sum(turn.response_length for turn in session.turns())
        assert session.breaks() == {}


AGENTS = """
from agents import Agent, Runner, function_tool, set_tracing_disabled

@function_tool
def bash(command: str) -> str:
    return "12"

set_tracing_disabled(True)
agent = Agent(name="a", model="m", instructions="Solve it.", tools=[bash])
first = Runner.run_sync(agent, "What is 3 * 4?", auto_previous_response_id=True)
second = Runner.run_sync(agent, "Sure?", previous_response_id=first.last_response_id)
print(first.final_output, second.final_output)
"""


@pytest.mark.long
async def test_openais_agents_sdk_continues_by_id_in_one_segment(scripted: Any, tmp_path: Path) -> None:
    """Its runner sends only what is new, within a run and from one run to the next."""
    python, _ = frameworks()
    async with scripted(SAYS) as (gateway, _):
        env = {"OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": "session-s1", "HOME": str(tmp_path)}
        process = await asyncio.create_subprocess_exec(python, "-c", AGENTS, env=env, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert (process.returncode, out.decode().split("\n")[0]) == (0, "It is 12. Yes.")
        session = gateway.sessions["s1"]
        assert (len(session.segments()), session.breaks(), session.calls) == (1, {}, 3)
