"""What a parser of tool calls is and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]
    id: str | None = field(default=None, compare=False)
    """As the model wrote it, where its family writes one."""


@dataclass(frozen=True)
class ParsedTurn:
    """What a turn says and does."""

    content: str
    """The text outside the calls."""
    calls: tuple[ToolCall, ...] = ()
    """In order; those before the first that cannot be read."""
    error: str | None = None
    """Why that one cannot be read, in words for the model."""


class ToolCallParser(Protocol):
    """One family's form of calls. Any object like this is a parser."""

    form: str
    """A sentence that tells a model how to write a call; part of the answer to a malformed one."""
    error_role: str
    """Role of that answer: `tool`, or `user` where a tool's message must follow a well-formed call. Behind calls that were
    carried out there is such a message: then `user` means that the last of their results ends with the answer."""

    def parse(self, text: str) -> ParsedTurn:
        """Never raises. `text` is a turn without the token that ended it, special tokens written out."""
        ...


MakeParser = type[Any]
"""Makes a parser from the schemas of the tools on offer: `Parser(tools)`."""


class MalformedCall(Exception):
    """Inside a parser: what is wrong with a call, in words for the model."""


def argument_types(tools: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """(tool, argument) -> JSON type, of those that are declared with one type. What is declared in no such way has none."""
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
    """Schemas come from callers: null, or anything else that is no object, declares nothing."""
    return value if isinstance(value, dict) else {}
