"""Calls of GLM 4.5 and Qwen3-Coder, which write each argument between tags of its own.

If the tool declares another type than string for an argument, the argument's value is parsed as JSON. The value stays
text if this fails, or if the tool declares a string or no type.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.tool_calls.base import MalformedCall, ParsedTurn, ToolCall, argument_types
from rollyard.tokens.tool_calls.call_forms import tagged_calls
from rollyard.tokens.tool_calls.call_json import load
from rollyard.tokens.tool_calls.hermes import CLOSE, OPEN
from rollyard.tokens.tool_calls.tagged_calls import parse_tagged


class _Pairs(ABC):
    error_role = "tool"

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        self._types = argument_types(tools)

    def parse(self, text: str) -> ParsedTurn:
        return parse_tagged(text, OPEN, CLOSE, self._read)

    @abstractmethod
    def _read(self, body: str) -> ToolCall: ...

    def _call(self, name: str, pairs: list[tuple[str, str]]) -> ToolCall:
        if not name or re.search(r"[\s<>{}]", name):
            raise MalformedCall("the name of the function is missing")
        return ToolCall(name, {key: self._value(name, key, value) for key, value in pairs})

    def _value(self, name: str, key: str, value: str) -> Any:
        if self._types.get((name, key), "string") != "string":
            try:
                return load(value.strip())
            except MalformedCall:
                pass  # the value stays text; the tool itself reports the wrong type
        try:
            value.encode()
        except UnicodeEncodeError:
            raise MalformedCall(f"`{key}` is no text") from None
        return value


class Glm(_Pairs):
    form = "Write <tool_call>NAME<arg_key>...</arg_key><arg_value>...</arg_value></tool_call>, with a pair for each argument."

    def _read(self, body: str) -> ToolCall:
        name, found, rest = body.partition("<arg_key>")
        return self._call(name.strip(), _pairs(found + rest, GLM_PAIR))

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        return tagged_calls(
            tools, lambda name: f"{OPEN}{name}\n", CLOSE, separator="\n", single=single, style="glm_xml"
        )


class Qwen3Coder(_Pairs):
    form = (
        "Write <tool_call><function=NAME> and then <parameter=KEY>...</parameter> for each argument, "
        "and </function></tool_call>."
    )

    def _read(self, body: str) -> ToolCall:
        match = FUNCTION.fullmatch(body)
        if match is None:
            raise MalformedCall("<function=NAME>...</function> is missing")
        return self._call(match[1].strip(), _pairs(match[2], PARAMETER))

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f"{OPEN}\n<function={name}>\n"

        return tagged_calls(tools, begin, f"\n</function>\n{CLOSE}", separator="\n", single=single, style="qwen_xml")


GLM_PAIR = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
FUNCTION = re.compile(r"\s*<function=([^>]*)>(.*)</function>\s*", re.DOTALL)
PARAMETER = re.compile(r"\s*<parameter=([^>]*)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _pairs(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    pairs, at = [], 0
    while match := pattern.match(text, at):
        pairs.append((match[1].strip(), match[2]))
        at = match.end()
    if text[at:].strip():
        raise MalformedCall(f"this is no argument: {text[at:].strip()[:60]!r}")
    return pairs
