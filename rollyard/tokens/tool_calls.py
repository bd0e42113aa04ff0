"""Reads the tool calls out of a turn's text: Hermes form, one JSON object in each pair of tool_call tags."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 32
"""Deeper nesting would not survive being written down and read again everywhere a trajectory goes."""
TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINKING_ENDS = "</think>"


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ParsedTurn:
    """What a turn says and does."""

    content: str
    """The text outside the tags."""
    calls: tuple[ToolCall, ...] = ()
    """In order; those before the first that cannot be read."""
    error: str | None = None
    """Why that one cannot be read, in words for the model."""


class _Malformed(Exception):
    pass


def parse(text: str) -> ParsedTurn:
    """Never raises: a malformed call is the model's doing and becomes `error`."""
    thoughts, text = _split_thoughts(text)
    content = [thoughts]
    calls: list[ToolCall] = []
    while True:
        before, opened, text = text.partition(OPEN)
        content.append(before)
        if not opened:
            return ParsedTurn("".join(content).strip(), tuple(calls))
        body, closed, text = text.partition(CLOSE)
        try:
            calls.append(_read(body, bool(closed)))
        except _Malformed as error:
            return ParsedTurn("".join([*content, text]).strip(), tuple(calls), str(error))


def _split_thoughts(text: str) -> tuple[str, str]:
    """A call that a reasoning model only thinks about is none, unless the end of thinking stands inside a call."""
    thoughts, ends, rest = text.partition(THINKING_ENDS)
    if ends and thoughts.rfind(OPEN) <= thoughts.rfind(CLOSE):
        return thoughts + ends, rest
    return "", text


def _read(body: str, closed: bool) -> ToolCall:
    if not closed:
        raise _Malformed(f"the closing tag {CLOSE} is missing")
    try:
        call = json.loads(body.strip())
        arguments = call.get("arguments") if isinstance(call, dict) else None
        if isinstance(arguments, str):  # some models write the object as a string of JSON, as OpenAI's API does
            arguments = json.loads(arguments)
        # Python reads more than JSON can hold: NaN, 1e999, half of a surrogate pair
        json.dumps([call, arguments], ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise _Malformed(str(error)) from None
    except RecursionError:
        raise _Malformed(TOO_DEEP) from None
    if _depth([call, arguments]) > MAX_DEPTH:
        raise _Malformed(TOO_DEEP)
    if not isinstance(call, dict):
        raise _Malformed("it must be a JSON object")
    if not isinstance(call.get("name"), str):
        raise _Malformed("`name` must be a string")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise _Malformed("`arguments` must be a JSON object")
    return ToolCall(call["name"], arguments)


def _depth(value: Any) -> int:
    """How many arrays and objects stand in one another."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, list | dict)]:
        depth += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return depth
