"""Calls as JSON between an opening and a closing tag, or behind a mark: `{"name": …, "arguments": {…}}`, or a list of
such objects. Most families write calls so; they differ in tags and keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ToolCall
from rollyard.tokens.tool_calls.call_forms import in_order, tagged_calls, text_form
from rollyard.tokens.tool_calls.call_json import ARGUMENTS, NAMES, call_of, load_at
from rollyard.tokens.tool_calls.family_parser import NEVER, FamilyParser

BEFORE = re.compile(r"\s*(?:```\w*\s*)?")
"""White space and the beginning of a code fence, which may stand in front of the JSON."""
BETWEEN = re.compile(r"(?:[\s,;]|```)*")


class JsonCalls(FamilyParser):
    """Parser of a family that writes calls as JSON."""

    closing = ""
    """Closing tag. It may be missing, because the JSON itself shows its end."""
    keys: tuple[str, ...] = ARGUMENTS
    """Keys of the arguments, the family's own first."""
    names: tuple[str, ...] = NAMES
    """Keys of the name, the family's own first."""
    in_list = False
    """Whether the family writes calls in a list."""

    @property
    def form(self) -> str:  # type: ignore[override]
        one = f'{{"{self.names[0]}": "...", "{self.keys[0]}": {{...}}}}'
        if self.in_list:
            return f"Write {self.marks[0].removesuffix('[')}[{one}]{self.closing} with one JSON object for each call."
        return f"Write {self.marks[0]}{one}{self.closing} with one JSON object for each call."

    @cached_property
    def remains(self) -> re.Pattern[str]:  # type: ignore[override]
        return re.compile(rf"[)}}\]]\s*(?:```\s*)?{re.escape(self.closing)}" if self.closing else NEVER)

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        mark = max((mark for mark in self.marks if text.startswith(mark, at)), key=len)
        at += len(mark.removesuffix("["))
        return self.read_json(text, at)

    def read_json(self, text: str, at: int) -> Iterator[ToolCall | int]:
        """Yield the calls behind a mark, as `read` does."""
        at = _behind(BEFORE, text, at)
        kind = MalformedCall if text[at : at + 1] in ("{", "[") else NoCall
        more = True
        while more:
            try:
                value, at = load_at(text, at)
            except MalformedCall as error:
                if self.closing and self.closing not in text[at:]:
                    raise kind(f"the closing tag {self.closing} is missing") from None
                raise kind(str(error)) from None
            if value == [] and not self.in_list:
                raise MalformedCall("the list has no call")
            for one in value if isinstance(value, list) else [value]:
                yield self.call(one)
            at = _behind(BETWEEN, text, at)
            yield at
            more = text[at : at + 1] in ("{", "[")
        if text.startswith(self.closing, at):
            yield at + len(self.closing)
        elif self.closing and at < len(text) and self.closing in text[at:]:
            raise MalformedCall(f"something else stands behind the JSON object: {text[at : at + 40]!r}")

    def call(self, value: Any) -> ToolCall:
        """Return the call in one JSON value. Raises MalformedCall."""
        return call_of(value, self.keys, self.names)

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f'{{"{self.names[0]}": "{name}", "{self.keys[0]}": '

        if not self.in_list:
            return tagged_calls(
                tools,
                lambda name: f"{self.marks[0]}\n{begin(name)}",
                f"}}\n{self.closing}",
                separator="\n",
                single=single,
            )
        calls = tagged_calls(tools, begin, "}", separator=", ", single=single)
        return in_order(text_form(f"{self.marks[0].removesuffix('[')}["), calls, text_form(f"]{self.closing}"))


def _behind(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None
    return found.end()
