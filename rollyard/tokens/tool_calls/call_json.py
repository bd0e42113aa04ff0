"""JSON as models write it in calls: strict enough to be written down again anywhere a trajectory goes."""

from __future__ import annotations

import json
from typing import Any

from rollyard.tokens.tool_calls.base import MalformedCall, ToolCall

MAX_DEPTH = 32
"""Deeper nesting would not survive being written down and read again everywhere a trajectory goes."""
TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"
_DECODER = json.JSONDecoder()


def load(text: str) -> Any:
    """Raises Malformed."""
    try:
        return checked(json.loads(text))
    except ValueError as error:
        raise MalformedCall(str(error)) from None
    except RecursionError:
        raise MalformedCall(TOO_DEEP) from None


def load_first(text: str) -> tuple[Any, str]:
    """The value that the text begins with, and the text behind it. Raises Malformed."""
    text = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(text)
        return checked(value), text[end:]
    except ValueError as error:
        raise MalformedCall(str(error)) from None
    except RecursionError:
        raise MalformedCall(TOO_DEEP) from None


def checked(value: Any) -> Any:
    """The value itself. Raises Malformed, or ValueError: Python reads more than JSON can hold."""
    # NaN, 1e999, half of a surrogate pair
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    if _depth([value]) > MAX_DEPTH:
        raise MalformedCall(TOO_DEEP)
    return value


def call_of(value: Any, arguments_key: str = "arguments") -> ToolCall:
    """A call from `{"name": …, "arguments": {…}}`. Raises Malformed."""
    if not isinstance(value, dict):
        raise MalformedCall("it must be a JSON object")
    arguments = value.get(arguments_key)
    if isinstance(arguments, str):  # some models write the object as a string of JSON, as OpenAI's API does
        arguments = load(arguments)
    if not isinstance(value.get("name"), str):
        raise MalformedCall("`name` must be a string")
    id = value.get("id")
    return ToolCall(value["name"], arguments_of(arguments, arguments_key), id if isinstance(id, str) else None)


def arguments_of(value: Any, key: str = "arguments") -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedCall(f"`{key}` must be a JSON object")
    return value


def _depth(value: Any) -> int:
    """How many arrays and objects stand in one another."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, list | dict)]:
        depth += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return depth
