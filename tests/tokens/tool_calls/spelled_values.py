"""Tools with arguments of all types, and the values that each family's calls must keep."""

from __future__ import annotations

from typing import Any

from rollyard.tokens.tool_calls import ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.parser_choice import BUILT_IN
from tests.tokens.tool_calls.family_forms import Call, FamilyForm

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "text": {"type": "string"},
                    "n": {"type": "integer"},
                    "x": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "off": {"type": "boolean"},
                    "xs": {"type": "array", "items": {"type": "string"}},
                    "rows": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                    "o": {"type": "object", "properties": {"k": {"type": "integer"}, "deep": {"type": "object"}}},
                    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "either": {"type": ["integer", "null"]},
                    "size": {"$ref": "#/$defs/Size"},
                    "level": {"enum": [1, 2, 3]},
                    "word": {"enum": ["low", "high"]},
                    "both": {"allOf": [{"type": "boolean"}]},
                },
                "$defs": {"Size": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
]
STOP: Call = ("stop", {})
PAGE = "".join(f'line {i}: {{\'a\': [1, 2], "b": "<x>"}}\n' for i in range(1000))

VALUES: dict[str, dict[str, Any]] = {
    "a text": {"path": "a.py"},
    "no argument": {},
    "an empty text": {"text": ""},
    "an empty text before another": {"text": "", "path": "a"},
    "a text of line breaks": {"text": "\n\n"},
    "line breaks at both ends": {"text": "\n a\n  b\n\n"},
    "blanks at both ends": {"text": "  a  "},
    "a text of 30 kB": {"text": PAGE, "path": "a"},
    "unbalanced brackets": {"text": "mkdir {a,b && echo ')' \"]"},
    "quotes": {"text": "it's \"so\" \\n \\ 'x'"},
    "Unicode": {"text": "naïve 漢字 🍸   \u2028"},
    "a tab and a backslash": {"text": "a\tb\\c"},
    "code": {"text": 'def f(x):\n    return {"a": [x]}  # <b>\n'},
    "a text of digits": {"text": "007"},
    "texts that look like values": {"text": "true", "path": "null", "word": "low"},
    "an integer": {"n": 5},
    "a great integer": {"n": 12345678901234567890},
    "a negative integer": {"n": -3},
    "a number": {"x": 1.5},
    "booleans": {"flag": True, "off": False},
    "a list": {"xs": ["a", "b"]},
    "lists in a list": {"rows": [[1, 2], [3]]},
    "an object": {"o": {"k": 1}},
    "anyOf": {"maybe": 5},
    "two types": {"either": 7},
    "a reference": {"size": 9},
    "an enum without type": {"level": 2},
    "allOf": {"both": True},
    "everything": {"path": "a", "n": 5, "flag": False, "xs": ["a", "b"], "o": {"k": 1}, "text": "b\nc"},
}
NULLS: dict[str, dict[str, Any]] = {"null by anyOf": {"maybe": None}, "null by type": {"either": None}}


def read(family: FamilyForm, text: str) -> ParsedTurn:
    turn: ParsedTurn = BUILT_IN[family.parser].make(TOOLS).parse(text)
    return turn


def calls(*expected: Call) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(name, arguments) for name, arguments in expected)
