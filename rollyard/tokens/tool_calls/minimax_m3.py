"""Calls of MiniMax M3. Every tag has a prefix, so that no value can be mistaken for a tag. Values are elements that nest:
the items of a list are `<item>` elements, the keys of an object are names of elements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rollyard.tokens.tool_calls.argument_types import ArgumentTypes, Schema
from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ToolCall
from rollyard.tokens.tool_calls.call_json import MAX_DEPTH, TOO_DEEP, skip_space
from rollyard.tokens.tool_calls.family_parser import THINK, FamilyParser

PREFIX = "]<]minimax[>["
GROUP, GROUP_ENDS = f"{PREFIX}<tool_call>", f"{PREFIX}</tool_call>"
INVOKE = re.compile(re.escape(PREFIX) + r"""<invoke\s+name=["']?(?P<name>[^"'>\n]+)["']?>""")
INVOKE_ENDS = f"{PREFIX}</invoke>"
ELEMENT = re.compile(re.escape(PREFIX) + r"<(?P<name>[^/<>\s][^<>\n]*)>")
Element = tuple[str, "str | list[Element]"]


class MiniMaxM3(FamilyParser):
    form = (
        f'Write {GROUP}{PREFIX}<invoke name="NAME"> and then {PREFIX}<KEY>...{PREFIX}</KEY> for each argument, '
        f"and {INVOKE_ENDS}{GROUP_ENDS}."
    )
    error_role = "user"
    marks = (GROUP, f"{PREFIX}<invoke")
    remains = re.compile(re.escape(INVOKE_ENDS))
    thinks = (("<mm:think>", "</mm:think>"), *THINK)

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(tools)
        self._types = ArgumentTypes(tools)

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        at = skip_space(text, at + len(GROUP)) if text.startswith(GROUP, at) else at
        invoke = INVOKE.match(text, at)
        if invoke is None:
            raise NoCall(f'{PREFIX}<invoke name="NAME"> is missing')
        while invoke is not None:
            elements, at = _elements(text, invoke.end(), INVOKE_ENDS, 0)
            name = invoke["name"].strip()
            schema = self._types.schema(name)
            yield ToolCall(name, {key: _value(value, schema.argument(key), key) for key, value in elements})
            yield at
            invoke = INVOKE.match(text, skip_space(text, at))
        at = skip_space(text, at)
        if text.startswith(GROUP_ENDS, at):
            yield at + len(GROUP_ENDS)


def _elements(text: str, at: int, closing: str, depth: int) -> tuple[list[Element], int]:
    """Read elements up to a closing tag. Return them and the position behind the tag."""
    if depth > MAX_DEPTH:
        raise MalformedCall(TOO_DEEP)
    found: list[Element] = []
    while not text.startswith(closing, at := skip_space(text, at)):
        element = ELEMENT.match(text, at)
        if element is None:
            raise MalformedCall(f"{closing} or another element is missing at {text[at : at + 40]!r}")
        ends, following = f"{PREFIX}</{element['name']}>", text.find(PREFIX, element.end())
        if following >= 0 and text.startswith(ends, following):
            found.append((element["name"], text[element.end() : following]))
            at = following + len(ends)
        else:
            inner, at = _elements(text, element.end(), ends, depth + 1)
            found.append((element["name"], inner))
    return found, at + len(closing)


def _value(value: str | list[Element], schema: Schema, key: str) -> Any:
    if isinstance(value, str):
        if not value.strip() and schema.types and schema.types <= {"array", "object", "null"}:
            return [] if "array" in schema.types else {}  # the template writes an empty list so
        return schema.value(key, value)
    if "array" in schema.types or (not schema.types and {name for name, _ in value} == {"item"}):
        return [_value(item, schema.items, key) for _, item in value]
    return {name: _value(inner, schema.argument(name), name) for name, inner in value}
