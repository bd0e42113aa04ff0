"""Parser of the JSON in calls. The values are checked strictly, so that every trajectory with them can be stored."""

from __future__ import annotations

import json
import re
from typing import Any

from rollyard.tokens.tool_calls.base import MalformedCall, ToolCall

MAX_DEPTH = 32
"""Greatest nesting depth. With deeper values a trajectory might later fail to be encoded or decoded."""
TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"
SPACE = re.compile(r"\s*")
ARGUMENTS = ("arguments", "parameters")
"""Keys of the arguments, the usual one first."""
NAMES = ("name",)
BESIDE = ("id", "tool_call_id", "type", "index")
"""Keys that a call may have besides."""
_DECODER = json.JSONDecoder()


def load(text: str) -> Any:
    """Parse a text. Raises MalformedCall."""
    value, end = load_at(text, 0)
    if rest := text[end:].strip():
        raise MalformedCall(f"something else stands behind the JSON: {rest[:40]!r}")
    return value


def load_at(text: str, at: int) -> tuple[Any, int]:
    """Parse the value at a position. Return the value and the position behind it. Raises MalformedCall."""
    start = skip_space(text, at)
    try:
        value, end = _DECODER.raw_decode(text, start)
        return checked(value), end
    except UnicodeEncodeError:
        raise MalformedCall("a text has half of a character: a lone surrogate") from None
    except json.JSONDecodeError as error:
        raise MalformedCall(str(json.JSONDecodeError(error.msg, text[start:], error.pos - start))) from None
    except ValueError as error:
        raise MalformedCall(str(error)) from None
    except RecursionError:
        raise MalformedCall(TOO_DEEP) from None


def skip_space(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    assert found is not None
    return found.end()


def checked(value: Any) -> Any:
    """Return the value if it can be stored as JSON. Else raise MalformedCall, ValueError, TypeError or RecursionError.

    The check is needed because Python's parser accepts values that JSON does not have.
    """
    # fails for NaN, 1e999 and half of a surrogate pair
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    if _depth([value]) > MAX_DEPTH:
        raise MalformedCall(TOO_DEEP)
    return value


def call_of(value: Any, keys: tuple[str, ...] = ARGUMENTS, names: tuple[str, ...] = NAMES) -> ToolCall:
    """Return the call in `{"name": …, "arguments": {…}}`. Raises MalformedCall.

    `keys`: keys of the arguments, the usual one first. `names`: keys of the name.
    """
    if not isinstance(value, dict):
        raise MalformedCall("it must be a JSON object")
    if isinstance(inner := value.get("function"), dict) and "name" not in value:  # as in OpenAI's API
        value = {"id": value.get("id"), **inner}
    name = next((value[key] for key in names if key in value), None)
    if not isinstance(name, str) or not name.strip():
        raise MalformedCall(f"`{names[0]}` must be a string")
    key = next((key for key in keys if key in value), keys[0])
    if key not in value and (others := value.keys() - {*names, *BESIDE}):
        raise MalformedCall(f"`{key}` is missing; the object has {', '.join(sorted(others))}")
    arguments = value.get(key)
    if isinstance(arguments, str):  # some models write the arguments as JSON in a string, as in OpenAI's API
        arguments = load(arguments) if arguments.strip() else {}
    id = value.get("id", value.get("tool_call_id"))
    return ToolCall(name.strip(), arguments_of(arguments, key), id if isinstance(id, str) else None)


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
