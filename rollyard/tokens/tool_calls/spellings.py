"""Other spellings of calls that models use where their chat template has one. The meaning is the same in each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

JSON_STYLES: dict[str, dict[str, Any]] = {
    "JSON without spaces": {"separators": (",", ":"), "ensure_ascii": False},
    "JSON with escapes": {"ensure_ascii": True},
    "JSON with indents": {"indent": 2, "ensure_ascii": False},
}
"""Name -> arguments of `json.dumps`."""
REWRITINGS = (
    ("values without line breaks", r"(<parameter=\w+>)\n(.*?)\n(</parameter>)", r"\1\2\3"),
    ("values on lines of their own", r"(<parameter=\w+>)(?!\n)(.*?)(?<!\n)(</parameter>)", "\\1\n\\2\n\\3"),
    ("Python's True", r"(?<=[>\n])true(?=[<\n])", "True"),
    ("JSON's true", r"(?<=[>\n])True(?=[<\n])", "true"),
    ("Python's False", r"(?<=[>\n])false(?=[<\n])", "False"),
    ("JSON's false", r"(?<=[>\n])False(?=[<\n])", "false"),
    ("no line breaks around calls", r"(<tool_call>)\n(.*?)\n(</tool_call>)", r"\1\2\3"),
    ("empty lines between calls", r"(</tool_call>)\s*(<tool_call>)", "\\1\n\n\\2"),
)
"""(name, pattern, replacement)."""


def other_spellings(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name of the spelling, text) for each spelling that differs from the given text of a turn."""
    for name in JSON_STYLES:
        if (other := in_json_style(text, name)) != text:
            yield name, other
    # the white space around Seed-OSS's values is a part of them
    for name, pattern, replacement in REWRITINGS if "<seed:" not in text else ():
        if (other := re.sub(pattern, replacement, text, flags=re.DOTALL)) != text:
            yield name, other


def in_json_style(text: str, name: str) -> str:
    """Write the JSON objects of a text in another style. `name`: from JSON_STYLES."""
    made, position, decoder = "", 0, json.JSONDecoder()
    while (start := text.find("{", position)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            made, position = made + text[position : start + 1], start + 1
            continue
        made, position = made + text[position:start] + json.dumps(value, **JSON_STYLES[name]), end
    return made + text[position:]
