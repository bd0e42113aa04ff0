"""Calls of Mistral, Magistral, Ministral and Devstral. `[TOOL_CALLS]` precedes a JSON array of calls.

With tokenizers from 2025 or later `[TOOL_CALLS]` precedes each call, which is written `name[ARGS]{…}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ToolCall
from rollyard.tokens.tool_calls.call_forms import either, in_order, tagged_calls, text_form
from rollyard.tokens.tool_calls.call_json import arguments_of, call_of, load_at
from rollyard.tokens.tool_calls.family_parser import THINK, FamilyParser

MARK = "[TOOL_CALLS]"
# Possessive quantifiers prevent backtracking, which would be slow for a name with a page of spaces after it.
NAMED = re.compile(r"\s*+([^\s\[\]{}\"]++)\s*+(?:\[CALL_ID\]\s*+(\S+?)\s*+)?(?:\[ARGS\])?+\s*+(?=\{)")


class Mistral(FamilyParser):
    form = 'Write [TOOL_CALLS] and behind it one JSON array [{"name": "...", "arguments": {...}}].'
    error_role = "user"
    marks = (MARK,)
    remains = re.compile(r"\[ARGS\]\s*\{")
    thinks = (("[THINK]", "[/THINK]"), *THINK)

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        at += len(MARK)
        if named := NAMED.match(text, at):
            value, at = load_at(text, named.end())
            yield ToolCall(named[1], arguments_of(value), named[2])
        else:
            kind = MalformedCall if text[at:].lstrip()[:1] in ("[", "{") else NoCall
            try:
                value, at = load_at(text, at)
            except MalformedCall as error:
                raise kind(str(error)) from None
            calls = [value] if isinstance(value, dict) else value
            if not isinstance(calls, list) or not calls:
                raise MalformedCall("behind [TOOL_CALLS] stands no JSON array of calls")
            for call in calls:
                yield call_of(call)
        yield at
        behind = text[at : at + len(MARK) + 200].lstrip()
        if behind and not behind.startswith(MARK):
            raise MalformedCall("something else stands behind the calls")

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f'{{"name": "{name}", "arguments": '

        array = in_order(
            text_form(f"{MARK}["), tagged_calls(tools, begin, "}", separator=", ", single=single), text_form("]")
        )
        return either(array, tagged_calls(tools, lambda name: f"{MARK}{name}[ARGS]", "", single=single))
