"""Interface of tool-call parsers, and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.tokens.constraint import Form


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]
    id: str | None = field(default=None, compare=False)
    """Id exactly as the model wrote it (`functions.get:0`, nine characters); None if it wrote none."""


@dataclass(frozen=True)
class ParsedTurn:
    """Thoughts, answer and calls of a turn."""

    content: str
    """Text of the answer, without thoughts and calls. If a call is malformed, the text goes on with this call as the model
    wrote it, up to the end of the turn."""
    calls: tuple[ToolCall, ...] = ()
    """Calls in order, up to the first malformed call."""
    error: str | None = None
    """Reason why the first malformed call cannot be parsed, as a text for the model; None if all calls are well formed."""
    thoughts: str | None = None
    """Text of the thoughts without their markers; None if the turn has none."""
    shown: str | None = field(default=None, compare=False)
    """The turn without its calls as a caller of the gateway sees it, with thoughts and their markers; None: as `content`."""
    foreign: bool = field(default=False, compare=False)
    """Whether `error` is about a call that has the form of another model family."""


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

    # optional: `marks`, the texts with which a call begins. The gateway streams a turn up to its first mark; without `marks`
    # it streams nothing before the turn is complete.

    def parse(self, text: str) -> ParsedTurn:
        """Parse a turn. Never raises.

        `text`: decoded turn with its special tokens, but without the token that ended the turn. If the prompt opened the
        turn's thoughts, its call or its answer, the text begins with the marker that opened them.
        """

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        """Return the form of a turn that consists of calls of these tools, in the format of vLLM's structural tags.

        `single`: one call; else one or more. A parser without this method cannot force calls.
        """


MakeParser = Callable[[Sequence[dict[str, Any]]], Any]
"""Class of a parser. `Parser(tools)` makes one; `tools` are the schemas of the tools that the model may call."""


class MalformedCall(Exception):
    """Raised inside a parser. The text tells the model the mistake in its call."""


class NoCall(MalformedCall):
    """Raised inside a parser if a mark is not followed by anything like a call. In thoughts such a mark is prose."""
