"""Anthropic's messages that end with the assistant's: the policy goes on from there, exactly, or the call is refused."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

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
        assert segment.prompt_length == len(upstream.prompts[0]), "the lead is no token of the policy's"
        assert segment.loss_mask[: segment.prompt_length] == [0] * segment.prompt_length
        assert sum(segment.loss_mask) == sum(turn.response_length for turn in turns)
        assert turns[0].text == " is 12."


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
    history = ChatHistory(ChatTemplate(tokenizer, template.stop_ids))
    with pytest.raises(TaskError, match="end with a message of the user"):
        history.prepare(ChatRequest(QUESTION, [], SamplingOverrides(), lead))
    assert history.prepare(ChatRequest(QUESTION, [], SamplingOverrides())).prompt, (
        "without it there is nothing to refuse"
    )
