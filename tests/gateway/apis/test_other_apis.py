"""Anthropic's messages, OpenAI's responses and completions, by their real clients: the same exact segments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from rollyard.gateway.apis.base import sse_data
from rollyard.tokens.chat_template import ChatTemplate
from tests.support.lazy_module import LazyModule
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LazyModule("anthropic")

CALL = 'Let me see.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
SAYS = [CALL, "It is 12."]
FUNCTION = TOOLS[0]["function"]


def claude(gateway: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=gateway.url, api_key="session-s1", max_retries=0)


def openai_client(gateway: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="session-s1", max_retries=0)


def exact(gateway: Any, upstream: Any, template: ChatTemplate, says: list[str]) -> None:
    session = gateway.sessions["s1"]
    (segment,) = session.segments()
    said = [[*template.encode(text), template.stop_ids[0]] for text in says]
    assert segment.token_ids == [*upstream.prompts[-1], *said[-1]]
    assert [i for i, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m] == [
        i for ids in said for i in ids
    ]
    assert session.breaks() == {}


@pytest.mark.parametrize("streamed", [False, True])
async def test_anthropics_tool_use_comes_back_as_ids(scripted: Any, template: ChatTemplate, streamed: bool) -> None:
    tools = [{"name": "bash", "description": "Run it.", "input_schema": FUNCTION["parameters"]}]
    messages: list[Any] = [{"role": "user", "content": "What is 3 * 4?"}]
    asked: dict[str, Any] = {"model": "m", "max_tokens": 100, "system": "Solve it.", "tools": tools}
    async with scripted(SAYS) as (gateway, upstream), claude(gateway) as ai:

        async def ask() -> Any:
            if not streamed:
                return await ai.messages.create(messages=messages, **asked)
            async with ai.messages.stream(messages=messages, **asked) as stream:
                told = "".join([piece async for piece in stream.text_stream])
                final = await stream.get_final_message()
            assert told == "".join(b.text for b in final.content if b.type == "text")
            return final

        first = await ask()
        text, use = first.content
        assert (first.stop_reason, text.text, use.name, use.input) == (
            "tool_use",
            "Let me see.",
            "bash",
            {"command": "ls"},
        )
        result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "12"}]}
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        counted = await ai.messages.count_tokens(model="m", messages=messages, system="Solve it.", tools=tools)
        second = await ask()
        assert (second.stop_reason, second.content[0].text) == ("end_turn", "It is 12.")
        assert second.usage.input_tokens == counted.input_tokens == len(upstream.prompts[1])
        exact(gateway, upstream, template, SAYS)


async def test_a_turn_with_a_call_is_tool_use_whatever_ended_it(scripted: Any) -> None:
    tools: list[Any] = [{"name": "bash", "input_schema": FUNCTION["parameters"]}]
    async with scripted([CALL + "\nEND of it"]) as (gateway, _), claude(gateway) as ai:
        said = await ai.messages.create(
            model="m", max_tokens=100, messages=[{"role": "user", "content": "x"}], tools=tools, stop_sequences=["END"]
        )
        assert (said.stop_reason, said.stop_sequence) == ("tool_use", None)


@pytest.mark.parametrize("streamed", [False, True])
async def test_anthropic_hears_which_text_ended_the_turn(scripted: Any, streamed: bool) -> None:
    async with scripted(["One, two END three"]) as (gateway, _), claude(gateway) as ai:
        asked: dict[str, Any] = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "x"}]}
        asked["stop_sequences"] = ["STOP", "END"]
        if streamed:
            async with ai.messages.stream(**asked) as stream:
                said = await stream.get_final_message()
        else:
            said = await ai.messages.create(**asked)
        assert (said.content[0].text, said.stop_reason, said.stop_sequence) == ("One, two", "stop_sequence", "END")


async def test_anthropic_hears_errors_in_its_own_shape(scripted: Any) -> None:
    async with scripted(SAYS) as (gateway, _), claude(gateway) as ai:
        messages: list[Any] = [{"role": "user", "content": "x"}]
        with pytest.raises(anthropic.BadRequestError) as refused:
            await ai.messages.create(model="m", max_tokens=9, messages=messages, tool_choice={"type": "any"})
        assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        cut = await ai.messages.create(model="m", max_tokens=2, messages=messages)
        assert cut.stop_reason == "max_tokens"


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses_function_calls_come_back_as_ids(scripted: Any, template: ChatTemplate, streamed: bool) -> None:
    tools: list[Any] = [{"type": "function", "strict": False, **FUNCTION}]
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "What is 3 * 4?"}]}]
    async with scripted(SAYS) as (gateway, upstream), openai_client(gateway) as ai:

        async def ask() -> Any:
            asked: dict[str, Any] = {"model": "m", "input": items, "instructions": "Solve it.", "tools": tools}
            if not streamed:
                return await ai.responses.create(**asked)
            async with ai.responses.stream(**asked) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
            assert "response.output_text.delta" in kinds
            return final

        first = await ask()
        call = first.output[1]
        assert (first.output_text, call.name, json.loads(call.arguments)) == ("Let me see.", "bash", {"command": "ls"})
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "12"})
        second = await ask()
        assert (second.status, second.output_text) == ("completed", "It is 12.")
        assert second.usage.input_tokens == len(upstream.prompts[1])
        exact(gateway, upstream, template, SAYS)


async def test_prompts_of_text_and_of_ids_go_on_by_their_beginning(scripted: Any, template: ChatTemplate) -> None:
    says = [" two three", " five", " seven"]
    async with scripted(says) as (gateway, upstream), openai_client(gateway) as ai:
        first = await ai.completions.create(model="m", prompt="one", max_tokens=50)
        assert first.choices[0].text == " two three"
        ended = template.decode([template.stop_ids[0]])
        stream = await ai.completions.create(model="m", prompt=f"one two three{ended} four", stream=True)
        assert "".join([c.choices[0].text async for c in stream]) == " five"
        head = [*upstream.prompts[1], *template.encode(" five"), template.stop_ids[0]]
        await ai.completions.create(model="m", prompt=[*head, 100, 101])
        assert upstream.prompts[2] == [*head, 100, 101]
        (segment,) = gateway.sessions["s1"].segments()
        assert sum(segment.loss_mask) == sum(len(template.encode(s)) + 1 for s in says)
        await ai.completions.create(model="m", prompt="another", max_tokens=50)
        assert gateway.sessions["s1"].breaks() == {}, "it has nothing that was sampled before"
        await ai.completions.create(model="m", prompt="one two eight", max_tokens=50)
        (why,) = [s.extras["opened_by"]["why"] for s in gateway.sessions["s1"].segments() if "opened_by" in s.extras]
        assert why.startswith("turn 4: the prompt's character 9 has 'eight', but had 'three")
        with pytest.raises(openai.BadRequestError, match="one text or one list"):
            await ai.completions.create(model="m", prompt=["a", "b"])


def test_an_event_of_half_a_character_is_an_event_all_the_same() -> None:
    """A policy may write it as an argument, in JSON's own notation."""
    assert sse_data({"a": "é\ud800"}) == 'data: {"a":"é?"}\n\n'.encode()
