"""Calls of DeepSeek, between special tokens. V3 and R1 write the arguments as JSON in a code fence, V3.1 as bare JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.sampled_turn import THINK_ENDS
from rollyard.tokens.tool_calls.base import MalformedCall, ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.call_forms import either, in_order, tagged_calls, text_form
from rollyard.tokens.tool_calls.call_json import arguments_of, load
from rollyard.tokens.tool_calls.tagged_calls import parse_tagged

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
FENCE = "```"


class DeepSeek:
    form = (
        f"Write {ALL_BEGIN}{BEGIN}NAME{SEPARATOR}{{...}}{END}{ALL_END} with one JSON object of arguments for each call."
    )
    error_role = "tool"

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        turn = parse_tagged(text, BEGIN, END, _read)
        thoughts, ends, answer = turn.content.rpartition(THINK_ENDS)
        content = (thoughts + ends + answer.replace(ALL_BEGIN, "").replace(ALL_END, "")).strip()
        if turn.error is None and not turn.calls and ALL_BEGIN in answer:
            return ParsedTurn(content, (), f"between {ALL_BEGIN} and {ALL_END} stands no call")
        return ParsedTurn(content, turn.calls, turn.error)

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def fenced(name: str) -> str:
            return f"{BEGIN}function{SEPARATOR}{name}\n{FENCE}json\n"

        v3 = tagged_calls(tools, fenced, f"\n{FENCE}{END}", separator="\n", single=single)
        v3_1 = tagged_calls(tools, lambda name: f"{BEGIN}{name}{SEPARATOR}", END, single=single)
        return in_order(text_form(ALL_BEGIN), either(v3, v3_1), text_form(ALL_END))


def _read(body: str) -> ToolCall:
    kind, separated, rest = body.partition(SEPARATOR)
    if not separated:
        raise MalformedCall(f"{SEPARATOR} is missing")
    before, fenced, inner = rest.partition(FENCE)
    if fenced and not before.lstrip().startswith("{"):
        name, arguments = before.strip(), inner.strip().removeprefix("json").strip().removesuffix(FENCE)
    else:
        name, arguments = kind.strip(), rest
    if not name:
        raise MalformedCall("the name is missing")
    return ToolCall(name, arguments_of(load(arguments.strip())))
