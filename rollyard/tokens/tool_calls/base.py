"""The interface of a tool-call parser, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]
    id: str | None = field(default=None, compare=False)
    """Id that the model wrote, if its family writes one."""


@dataclass(frozen=True)
class ParsedTurn:
    """The text and the calls of a turn."""

    content: str
    """The text outside the calls."""
    calls: tuple[ToolCall, ...] = ()
    """Calls in order, up to the first one that cannot be parsed."""
    error: str | None = None
    """Reason why the next call cannot be parsed, as a sentence for the model."""


class ToolCallParser(Protocol):
    """The form of calls of one family. Any object with these members is a parser."""

    form: str
    """Sentence that explains how to write a call. It is part of the answer to a malformed call."""
    error_role: str
    """Role of that answer: `tool`, or `user` if a tool's message must follow a well-formed call.

    If calls before the malformed one were run, their results are tool's messages already. In this case `user` means that
    the answer is appended to the last result, not sent as a user's message.
    """

    def parse(self, text: str) -> ParsedTurn:
        """Parse a turn; never raises. `text`: the decoded turn, special tokens written out, without the token that ended it."""
        ...


MakeParser = type[Any]
"""Class that makes a parser from the schemas of the offered tools: `Parser(tools)`."""


class MalformedCall(Exception):
    """Raised inside a parser: the mistake in a call, as a sentence for the model."""


def argument_types(tools: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return (tool, argument) -> JSON type, for arguments that are declared with exactly one type."""
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
    """Return the object. Null or any other value gives an empty one, because schemas come from callers."""
    return value if isinstance(value, dict) else {}
