"""Calls in the form Hermes, which Qwen2.5 and Qwen3 use: one JSON object in each pair of tool_call tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.tool_calls.base import ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.call_forms import tagged_calls
from rollyard.tokens.tool_calls.call_json import call_of, load
from rollyard.tokens.tool_calls.tagged_calls import parse_tagged

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = 'Write one JSON object {"name": "...", "arguments": {...}} inside <tool_call></tool_call>.'
"""Text in a tool result after a malformed call. Do not change this text, because users' policies are trained with it."""


class Hermes:
    form = FORM
    error_role = "tool"

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        return parse_tagged(text, OPEN, CLOSE, _read)

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f'{OPEN}\n{{"name": "{name}", "arguments": '

        return tagged_calls(tools, begin, f"}}\n{CLOSE}", separator="\n", single=single)


def parse(text: str) -> ParsedTurn:
    """Parse a turn in the form Hermes. Never raises."""
    return parse_tagged(text, OPEN, CLOSE, _read)


def _read(body: str) -> ToolCall:
    return call_of(load(body.strip()))
