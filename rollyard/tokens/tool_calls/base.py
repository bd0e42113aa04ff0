"""Interface of tool-call parsers, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.tokens.constraint import Form


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]
    id: str | None = field(default=None, compare=False)
    """Id that the model wrote; None if the model family writes no ids."""


@dataclass(frozen=True)
class ParsedTurn:
    """Text and calls of a turn."""

    content: str
    """Text of the turn outside the calls."""
    calls: tuple[ToolCall, ...] = ()
    """Calls in order, up to the first malformed call."""
    error: str | None = None
    """Reason why the first malformed call cannot be parsed, as a text for the model; None if all calls are well formed."""


class ToolCallParser(Protocol):
    """Parser for the calls of one model family. Any object with these members can be used."""

    form: str
    """Sentence that tells the model how to write a call. The answer to a malformed call contains this sentence."""
    error_role: str
    """Role of the answer to a malformed call: `tool`, or `user` if the chat template accepts the role `tool` only after a
    well-formed call.

    If calls before the malformed call were run and the role is `user`, no separate message is made: the answer is
    appended to the result of the last of these calls.
    """

    def parse(self, text: str) -> ParsedTurn:
        """Parse a turn. Never raises.

        `text`: decoded turn with its special tokens, but without the token that ended the turn.
        """
        ...

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        """Return the form of a turn that consists of calls of these tools, in the format of vLLM's structural tags.

        `single`: one call; else one or more. A parser without this method cannot force calls.
        """
        ...


MakeParser = type[Any]
"""Class of a parser. `Parser(tools)` makes a parser; `tools` are the schemas of the tools that the model may call."""


class MalformedCall(Exception):
    """Raised inside a parser. The text tells the model the mistake in its call."""


def argument_types(tools: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return (tool, argument) -> JSON type. An argument without exactly one declared type is left out."""
    types = {}
    for tool in tools:
        function = _object(tool.get("function", tool))
        name = function.get("name")
        for argument, schema in _object(_object(function.get("parameters")).get("properties")).items():
            declared = _object(schema).get("type")
            if isinstance(name, str) and isinstance(declared, str):
                types[name, argument] = declared
    return types


def _object(value: Any) -> dict[str, Any]:
    """Return `value` if it is an object, else an empty object. Schemas come from callers and may contain anything."""
    return value if isinstance(value, dict) else {}
