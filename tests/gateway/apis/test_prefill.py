"""Calls whose last message is the beginning of the assistant's: the policy goes on from there, exactly, or the call is
refused. Anthropic's API always means this; in OpenAI's chat API vLLM's `continue_final_message` says it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import openai
import pytest

from rollyard.core.errors import TaskError
from rollyard.gateway.requests.chat_request import ChatRequest
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.gateway.session.chat_to_ids import ChatHistory
from rollyard.tokens.chat_template import ChatTemplate
from tests.support.lazy_module import LazyModule
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LazyModule("anthropic")

QUESTION: list[Any] = [{"role": "user", "content": "What is 3 * 4?"}]
LEAD: dict[str, Any] = {"role": "assistant", "content": "The answer"}


def claude(gateway: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=gateway.url, api_key="session-s1", max_retries=0)


def openai_client(gateway: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="session-s1", max_retries=0)


def back(content: str, joined: bool) -> list[Any]:
    return [{**LEAD, "content": LEAD["content"] + content}] if joined else [LEAD, {**LEAD, "content": content}]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("joined", [False, True])
async def test_a_turn_goes_on_from_what_the_caller_put_there(
    scripted: Any, template: ChatTemplate, streamed: bool, joined: bool
) -> None:
    asked: dict[str, Any] = {"model": "m", "max_tokens": 50}
    async with scripted([" is 12.", "Yes."]) as (gateway, upstream), claude(gateway) as ai:
        if streamed:
            async with ai.messages.stream(messages=[*QUESTION, LEAD], **asked) as stream:
                said = await stream.get_final_message()
        else:
            said = await ai.messages.create(messages=[*QUESTION, LEAD], **asked)
        assert said.content[0].text == " is 12."  # type: ignore[union-attr]
        counted = await ai.messages.count_tokens(model="m", messages=[*QUESTION, LEAD])
        open_turn = template.render(QUESTION, [], True)
        assert upstream.prompts[0] == template.encode(open_turn + LEAD["content"])
        assert said.usage.input_tokens == len(upstream.prompts[0]) == counted.input_tokens
        more = [*QUESTION, *back(said.content[0].text, joined), {"role": "user", "content": "Sure?"}]  # type: ignore[union-attr]
        await ai.messages.create(messages=more, **asked)
        session = gateway.sessions["s1"]
        (segment,), turns = session.segments(), session.turns()
        sampled = [*template.encode(" is 12."), template.stop_ids[0]]
        assert upstream.prompts[1][: len(upstream.prompts[0]) + len(sampled)] == [*upstream.prompts[0], *sampled]
        assert session.breaks() == {}
        assert segment.prompt_length == len(upstream.prompts[0]), "the lead is not a token of the policy's"
        assert segment.loss_mask[: segment.prompt_length] == [0] * segment.prompt_length
        assert sum(segment.loss_mask) == sum(turn.response_length for turn in turns)
        assert turns[0].text == " is 12."


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("joined", [False, True])
async def test_openais_chat_goes_on_where_the_caller_says_so(
    scripted: Any, template: ChatTemplate, streamed: bool, joined: bool
) -> None:
    async with scripted([" is 12.", "Yes."]) as (gateway, upstream), openai_client(gateway) as ai:
        asked: Any = {"model": "m", "messages": [*QUESTION, LEAD], "stream": streamed}
        said = await ai.chat.completions.create(
            **asked, extra_body={"continue_final_message": True, "add_generation_prompt": False}
        )
        if streamed:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in said])
        else:
            text = said.choices[0].message.content
        assert text == " is 12."
        assert upstream.prompts[0] == template.encode(template.render(QUESTION, [], True) + LEAD["content"])
        more = [*QUESTION, *back(text, joined), {"role": "user", "content": "Sure?"}]
        await ai.chat.completions.create(model="m", messages=more)
        session = gateway.sessions["s1"]
        (segment,) = session.segments()
        assert session.breaks() == {}
        assert segment.prompt_length == len(upstream.prompts[0]), "the lead is not a token of the policy's"
        assert sum(segment.loss_mask) == sum(turn.response_length for turn in session.turns())


@pytest.mark.parametrize(
    ("last", "fields", "words"),
    [
        (LEAD, {"continue_final_message": True, "add_generation_prompt": True}, "to false or leave it out"),
        (LEAD, {"add_generation_prompt": False}, "only with `continue_final_message` true"),
        (QUESTION[0], {"continue_final_message": True}, "must be the assistant's"),
        ({"role": "assistant", "content": ""}, {"continue_final_message": True}, "with text"),
        (LEAD, {"continue_final_message": "yes"}, "true or false"),
    ],
)
async def test_openais_fields_for_a_begun_turn_must_agree(scripted: Any, last: Any, fields: Any, words: str) -> None:
    async with scripted(["x"]) as (gateway, upstream), openai_client(gateway) as ai:
        with pytest.raises(openai.BadRequestError, match=words):
            await ai.chat.completions.create(model="m", messages=[*QUESTION, last], extra_body=fields)
        assert upstream.prompts == []


async def test_several_answers_go_on_from_the_same_beginning(scripted: Any) -> None:
    async with scripted([" is 12.", " is twelve."]) as (gateway, upstream), openai_client(gateway) as ai:
        asked: Any = {"model": "m", "messages": [*QUESTION, LEAD], "n": 2, "logprobs": True}
        said = await ai.chat.completions.create(**asked, extra_body={"continue_final_message": True})
        assert upstream.prompts[0] == upstream.prompts[1]
        session = gateway.sessions["s1"]
        for choice, segment in zip(said.choices, session.segments(), strict=True):
            assert segment.prompt_length == len(upstream.prompts[0])
            shown = b"".join(bytes(one.bytes) for one in choice.logprobs.content)  # type: ignore[union-attr, arg-type]
            assert shown.decode() == choice.message.content
        assert session.breaks() == {}


async def test_a_call_may_begin_in_the_callers_text(scripted: Any) -> None:
    tools: list[Any] = [{"name": "bash", "input_schema": TOOLS[0]["function"]["parameters"]}]  # type: ignore[index]
    lead = {"role": "assistant", "content": '<tool_call>\n{"name": "bash",'}
    async with scripted([' "arguments": {"command": "ls"}}\n</tool_call>']) as (gateway, _), claude(gateway) as ai:
        said = await ai.messages.create(model="m", max_tokens=50, messages=[*QUESTION, lead], tools=tools)  # type: ignore[list-item]
        assert [(b.type, b.input) for b in said.content] == [("tool_use", {"command": "ls"})]  # type: ignore[union-attr]


async def test_a_call_without_its_result_at_the_end_is_refused(scripted: Any) -> None:
    use = {"type": "tool_use", "id": "t", "name": "bash", "input": {}}
    async with scripted(["x"]) as (gateway, upstream), claude(gateway) as ai:
        with pytest.raises(anthropic.BadRequestError, match="that no tool_result follows"):
            await ai.messages.create(
                model="m",
                max_tokens=9,
                messages=[*QUESTION, {"role": "assistant", "content": [use]}],  # type: ignore[list-item]
            )
        assert upstream.prompts == []


@pytest.mark.parametrize("lead", ["Twelve", "Twelve "])
def test_a_template_that_begins_a_turn_otherwise_is_no_place_to_go_on(template: ChatTemplate, lead: str) -> None:
    """One that opens thoughts before each answer, and one that trims what a message says."""
    tokenizer = copy.deepcopy(template._tokenizer)
    opened = "<|im_start|>assistant\\n"
    if lead.endswith(" "):
        tokenizer.chat_template = template.source.replace("(message.content or '')", "message.content | trim")
    else:
        tokenizer.chat_template = template.source.replace(f"'{opened}' }}}}", f"'{opened}<think>\\n' }}}}")
    assert tokenizer.chat_template != template.source
    history = ChatHistory(ChatTemplate(tokenizer, template.stop_ids), lambda tools: None)
    with pytest.raises(TaskError, match="end with a message of the user"):
        history.prepare(ChatRequest(QUESTION, [], SamplingOverrides(), lead))
    assert history.prepare(ChatRequest(QUESTION, [], SamplingOverrides())).prompt, (
        "without it there is nothing to refuse"
    )
