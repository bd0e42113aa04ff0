"""Calls of Mistral. `[TOOL_CALLS]` precedes a JSON array of calls.

With tokenizers from 2025 or later `[TOOL_CALLS]` precedes each call, which is written `name[ARGS]{…}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.tool_calls.base import MalformedCall, ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.call_forms import either, in_order, tagged_calls, text_form
from rollyard.tokens.tool_calls.call_json import arguments_of, call_of, load_first

MARK = "[TOOL_CALLS]"
# Possessive quantifiers prevent backtracking, which would be slow for a name with a page of spaces after it.
NAMED = re.compile(r"\s*+([^\s\[\]{}\"]++)\s*+(?:\[CALL_ID\]\s*+(\S+?)\s*+)?(?:\[ARGS\])?+\s*+(?=\{)")


class Mistral:
    form = 'Write [TOOL_CALLS] and behind it one JSON array [{"name": "...", "arguments": {...}}].'
    error_role = "user"

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        content, *bodies = text.split(MARK)
        calls: list[ToolCall] = []
        try:
            for body in bodies:
                self._read(body, calls)
        except MalformedCall as error:
            return ParsedTurn(content.strip(), tuple(calls), str(error))
        return ParsedTurn(content.strip(), tuple(calls))

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f'{{"name": "{name}", "arguments": '

        array = in_order(
            text_form(f"{MARK}["), tagged_calls(tools, begin, "}", separator=", ", single=single), text_form("]")
        )
        return either(array, tagged_calls(tools, lambda name: f"{MARK}{name}[ARGS]", "", single=single))

    @staticmethod
    def _read(body: str, calls: list[ToolCall]) -> None:
        if named := NAMED.match(body):
            value, rest = load_first(body[named.end() :])
            calls.append(ToolCall(named[1], arguments_of(value), named[2]))
        else:
            value, rest = load_first(body)
            if not isinstance(value, list) or not value:
                raise MalformedCall("behind [TOOL_CALLS] stands no JSON array of calls")
            for call in value:
                calls.append(call_of(call))
        if rest.strip():
            raise MalformedCall("something else stands behind the calls")
