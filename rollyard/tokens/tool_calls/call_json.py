"""Parser of the JSON in calls. The values are checked strictly, so that every trajectory with them can be stored."""

from __future__ import annotations

import json
from typing import Any

from rollyard.tokens.tool_calls.base import MalformedCall, ToolCall

MAX_DEPTH = 32
"""Greatest nesting depth. With deeper values a trajectory might later fail to be encoded or decoded."""
TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"
_DECODER = json.JSONDecoder()


def load(text: str) -> Any:
    """Parse a text. Raises MalformedCall."""
    try:
        return checked(json.loads(text))
    except ValueError as error:
        raise MalformedCall(str(error)) from None
    except RecursionError:
        raise MalformedCall(TOO_DEEP) from None


def load_first(text: str) -> tuple[Any, str]:
    """Parse the value at the beginning of a text. Return the value and the remaining text. Raises MalformedCall."""
    text = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(text)
        return checked(value), text[end:]
    except ValueError as error:
        raise MalformedCall(str(error)) from None
    except RecursionError:
        raise MalformedCall(TOO_DEEP) from None


def checked(value: Any) -> Any:
    """Return the value if it can be stored as JSON. Else raise MalformedCall, ValueError, TypeError or RecursionError.

    The check is needed because Python's parser accepts values that JSON does not have.
    """
    # fails for NaN, 1e999 and half of a surrogate pair
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    if _depth([value]) > MAX_DEPTH:
        raise MalformedCall(TOO_DEEP)
    return value


def call_of(value: Any, arguments_key: str = "arguments") -> ToolCall:
    """Return the call in `{"name": …, "arguments": {…}}`. Raises MalformedCall."""
    if not isinstance(value, dict):
        raise MalformedCall("it must be a JSON object")
    arguments = value.get(arguments_key)
    if isinstance(arguments, str):  # some models write the arguments as JSON in a string, as in OpenAI's API
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
    """Return the nesting depth of arrays and objects."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, list | dict)]:
        depth += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return depth
