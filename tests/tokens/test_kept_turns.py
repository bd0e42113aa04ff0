"""Sampled turns keep their ids in a segment that opens later, also if the template drops their thoughts and spells their
calls in another way."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import BreakCause, Conversation
from rollyard.tokens.tool_calls import ToolCall
from tests.support.template_oracle import TOOLS, Oracle, call
from tests.tokens.test_fields import ASKED, KIMI, begin, of, oracle, say, shown
from tests.tokens.tool_calls.test_odd_spellings import read

DATE = r"\d{4}-\d\d-\d\d"
AGAIN = {"role": "user", "content": "And then?"}


@dataclass(frozen=True)
class Family:
    template: str
    thoughts: str
    """Thoughts with the markers that the model samples."""
    call: str
    """Call of `get_weather`. ARGUMENTS stands for the JSON of its arguments."""
    end: str
    answer: str
    answer_end: str
    between: str = ""
    """White space between thoughts and call."""


FAMILIES = (
    Family(
        "qwen3",
        "<think>\nHm.\n</think>",
        '<tool_call>{"name":"get_weather", "arguments":ARGUMENTS}</tool_call>',
        "<|im_end|>",
        "Sunny.",
        "<|im_end|>",
        "\n\n",
    ),
    Family(
        "gptoss",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>ARGUMENTS",
        "<|call|>",
        "<|channel|>final<|message|>Sunny.",
        "<|return|>",
    ),
)
ARGUMENTS: tuple[dict[str, Any], ...] = ({"days": 2, "place": "Quito"}, {"place": "Quito"}, {})


def kept(conversation: Conversation, template: ChatTemplate, text: str) -> bool:
    """Return whether the next prompt has the ids that `ids_of` gives a text."""
    ids, part = conversation.prompt_ids(), ids_of(template, text)
    return any(ids[i : i + len(part)] == part for i in range(len(ids)))


def ids_of(template: ChatTemplate, text: str) -> list[int]:
    """Return ids of a text that no tokenizer gives: each character alone, and each special token."""
    special = [end for end in template.ends.values()] + [
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|start|>",
        "<|end|>",
    ]
    ids: list[int] = []
    while text:
        piece = next((mark for mark in special if mark and text.startswith(mark)), text[0])
        ids, text = ids + template.encode(piece), text[len(piece) :]
    return ids


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=["a number first", "a text first", "no arguments"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.template)
def test_a_respelled_turn_without_its_thoughts_keeps_its_ids(family: Family, arguments: dict[str, Any]) -> None:
    made = oracle(family.template)
    template = of(made)
    conversation = begin(template)
    text = family.call.replace("ARGUMENTS", json.dumps(arguments, separators=(",", ":")))
    for thoughts in (family.thoughts, ""):
        say_apart(template, conversation, thoughts + family.between * bool(thoughts), text, family.end)
        conversation.add_results(["Sunny."])
    say(template, conversation, family.thoughts + family.between + family.answer, family.answer_end)
    conversation.add_messages([AGAIN])
    prompt = shown(template, conversation)
    assert kept(conversation, template, text)
    assert prompt.count(text) == 2
    called = made.said(
        "", [{**call("get_weather", "Quito"), "function": {"name": "get_weather", "arguments": arguments}}]
    )
    result = {"role": "tool", "name": "get_weather", "tool_call_id": "000000000", "content": "Sunny."}
    wanted = made.render([*ASKED, called, result, called, result, made.said("Sunny.", []), AGAIN], TOOLS)
    spelled = made.spoken(ASKED, called, TOOLS).removeprefix("<think>\n\n</think>\n\n")
    assert wanted.count(spelled) == 2
    assert re.sub(DATE, "", prompt) == re.sub(DATE, "", wanted.replace(spelled, text))
    assert [broken.cause for broken in conversation.breaks] == [BreakCause.THOUGHTS_DROPPED]


def say_apart(template: ChatTemplate, conversation: Conversation, front: str, text: str, end: str) -> None:
    """Add a turn with the ids of `ids_of` for its text."""
    prompt = conversation.prompt_ids()
    ids = [*template.encode_behind(prompt[-1], front), *ids_of(template, text), *template.encode(end)]
    conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")


def test_white_space_behind_an_answer_is_kept_if_its_thoughts_are_dropped() -> None:
    template = of(oracle("gptoss"))
    conversation = begin(template)
    say(template, conversation, FAMILIES[1].thoughts + "<|channel|>final<|message|>Sunny. \n", "<|return|>")
    conversation.add_messages([AGAIN])
    assert "<|channel|>final<|message|>Sunny. \n<|end|>" in shown(template, conversation)


def test_thoughts_after_a_prompt_with_empty_thoughts_are_not_opened_twice() -> None:
    plain = oracle("qwen3").tokenizer.chat_template
    closed = plain.replace("enable_thinking is defined and enable_thinking is false", "true")
    assert closed != plain
    made = Oracle(closed)
    template = of(made)
    conversation = begin(template)
    text = '<think>\nHm.\n</think>\n\n<tool_call>{"name":"get_weather","arguments":{"place":"Quito"}}</tool_call>'
    for _ in range(2):
        say(template, conversation, text)
        conversation.add_results(["Sunny."])
    prompt = shown(template, conversation)
    assert prompt.count("<|im_start|>assistant\n" + text + "<|im_end|>") == 2
    assert [broken.cause for broken in conversation.breaks] == [BreakCause.TEMPLATE_REWROTE] * 2


def test_ids_that_carry_names_count_the_calls_of_the_whole_conversation() -> None:
    template = of(Oracle(KIMI))
    history: list[dict[str, Any]] = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [{**call("get_weather", "Quito"), "id": "call_1"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
        {"role": "assistant", "content": "", "tool_calls": [{**call("get_weather", "Lima"), "id": "call_2"}]},
        {"role": "tool", "tool_call_id": "call_2", "content": "Rain."},
    ]
    conversation = begin(template, history)
    body = '<|tool_call_begin|>get_weather<|tool_call_argument_begin|>{"place": "Cusco"}<|tool_call_end|>'
    say(template, conversation, f"<|tool_calls_section_begin|>{body}{body}<|tool_calls_section_end|>")
    conversation.add_results(["Fog.", "Hail."])
    prompt = shown(template, conversation)
    for number, result in enumerate(("Sunny.", "Rain.", "Fog.", "Hail.")):
        assert f"Return of functions.get_weather:{number}\n{result}" in prompt


@pytest.mark.parametrize("name", ["kimi_k2", "solar"])
@pytest.mark.parametrize("left_out", ["call end", "section begin"])
def test_a_mark_that_a_model_left_out_is_no_text_and_no_second_call(name: str, left_out: str) -> None:
    begins, ends, call_end, body = {
        "kimi_k2": (
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_end|>",
            "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{}",
        ),
        "solar": (
            "<|tool_calls|>",
            "<|calls|>",
            "<|tool_call:end|>",
            "<|tool_call:begin|>x1<|tool_call:name|>get<|tool_call:args|>{}",
        ),
    }[name]
    whole = begins + body + call_end + ends
    turn = read(name, whole.replace(call_end if left_out == "call end" else begins, ""))
    assert (turn.calls, turn.content, turn.error) == ((ToolCall("get", {}),), "", None)
    wrong = read(name, begins + body + "?" + call_end + ends)
    assert (wrong.calls, wrong.error is None) == ((), False)
