from __future__ import annotations

import pytest

from rollyard.tokens.tool_calls import ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.hermes import Hermes

parse = Hermes().parse


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


LS = call('{"name": "bash", "arguments": {"command": "ls"}}')
BASH = ToolCall("bash", {"command": "ls"})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("The answer is 4.", "The answer is 4.", ()),
        ("", "", ()),
        (LS, "", (BASH,)),
        (f"First I look.\n{LS}\nThen I think.", "First I look.\n\nThen I think.", (BASH,)),
        (f"{LS}\n{LS}", "", (BASH, BASH)),
        (call('{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}'), "", (BASH,)),
        (call('{"name": "stop"}'), "", (ToolCall("stop", {}),)),
        (call('{"name": "stop", "arguments": null}'), "", (ToolCall("stop", {}),)),
        (call('{"name": "say", "arguments": {"text": "a \\u00e9 <b>"}}'), "", (ToolCall("say", {"text": "a é <b>"}),)),
        (f"<think>maybe {LS}</think>\nNo.", "No.", ()),
        (f"<think>hm</think>\n{LS}", "", (BASH,)),
        (call('{"name": "say", "arguments": {"t": "</think>"}}'), "", (ToolCall("say", {"t": "</think>"}),)),
    ],
)
def test_calls_and_the_text_around_them(text: str, content: str, calls: tuple[ToolCall, ...]) -> None:
    turn = parse(text)
    assert (turn.content, turn.calls, turn.error) == (content, calls, None)


@pytest.mark.parametrize(
    ("text", "thoughts", "shown"),
    [
        ("Yes.", None, "Yes."),
        ("<think>\nhm\n</think>\n\nYes.", "hm", "<think>\nhm\n</think>\n\nYes."),
        (f"<think>hm</think>{LS}", "hm", "<think>hm</think>"),
        ("hm</think>Yes.", "hm", "hm</think>Yes."),
    ],
)
def test_thoughts_are_apart_from_the_answer(text: str, thoughts: str | None, shown: str) -> None:
    turn = parse(text)
    assert turn.thoughts == thoughts
    assert turn.shown == shown


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('{"name": "bash", "arguments": {"command": "ls"}', "Expecting ',' delimiter: line 2 column 1 (char 48)"),
        ("ls -l", "Expecting value: line 1 column 1 (char 0)"),
        ("[1, 2]", "it must be a JSON object"),
        ('{"arguments": {}}', "`name` must be a string"),
        ('{"name": 3, "arguments": {}}', "`name` must be a string"),
        ('{"name": "bash", "arguments": ["ls"]}', "`arguments` must be a JSON object"),
        ('{"name": "bash", "arguments": "ls"}', "Expecting value: line 1 column 1 (char 0)"),
        ('{"name": "bash", "arguments": "3"}', "`arguments` must be a JSON object"),
    ],
)
def test_a_malformed_call_says_why(body: str, error: str) -> None:
    assert parse(call(body)) == ParsedTurn(call(body), (), error)


def test_an_unclosed_call_says_so() -> None:
    text = 'I try <tool_call>\n{"name": "bash"'
    assert parse(text) == ParsedTurn(text, (), "the closing tag </tool_call> is missing")


def test_calls_before_a_malformed_one_stand() -> None:
    assert parse(f"{LS}{call('{')}{LS}").calls == (BASH,)
    assert parse(f"{LS}{call('{')}{LS}").error is not None
