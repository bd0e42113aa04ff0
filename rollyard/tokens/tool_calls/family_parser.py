"""Reads a turn from its beginning to its end: thoughts, text and calls. The parser of a family adds how its calls look.

A mark such as `<tool_call>` begins a call. The family's `read` finds the end of the call by the call's structure, so that
markup inside an argument is text. Complete thoughts have no calls, whatever tags they mention. In thoughts that are not
closed, calls are found: models forget to close their thoughts.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from rollyard.core.errors import TaskError
from rollyard.tokens.constraint import Form
from rollyard.tokens.tool_calls.argument_types import ArgumentTypes
from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.lost_calls import FOREIGN, lost_call

THINK = (("<think>", "</think>"),)
"""Most families' markers of thoughts."""
NEVER = r"(?!)"
"""Pattern that matches nothing."""
MAX_TRIES = 32
"""Greatest number of marks in one piece of thoughts at which a call is sought."""

MAX_BARE = 2_000
"""Greatest number of marks in a turn that may be ordinary text, such as `{`. More of them are an error."""


class FamilyParser(ABC):
    """Parser of a model family."""

    form: str
    error_role = "tool"
    marks: tuple[str, ...]
    """Texts that begin a call. The gateway's streams hold back a mark and all text after it."""
    thinks: tuple[tuple[str, str], ...] = THINK
    """Markers (opening, closing) of thoughts."""
    wrappers: tuple[str, ...] = ()
    """Markers around the answer, which are no part of it."""
    header = ""
    """Wrapper that the model samples where a prompt ends without it, and that a template writes before the turn."""
    held: tuple[str, ...] = ()
    """Other texts that a stream holds back, with all text after them. An empty text holds back the whole turn."""
    remains: re.Pattern[str] = re.compile(NEVER)
    """End of a call. Where it stands in an answer, the beginning of its call is missing."""
    bare = False
    """Whether a mark may also be ordinary text, such as `{`. Text after such a mark that is no call is no error."""

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        """`tools`: the schemas of the tools that the model may call."""
        self.tools = tuple(tools)

    @abstractmethod
    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        """Yield the calls at the mark at position `at`, and at last the position of their end. Raises MalformedCall."""

    def calls_at(self, text: str, at: int) -> tuple[list[ToolCall], int, MalformedCall | None]:
        """Read the calls at a mark. Return the calls, the position behind them, and the error, if there is one."""
        calls, end = [], at
        try:
            for one in self.read(text, at):
                if isinstance(one, int):
                    end = one
                else:
                    calls.append(one)
        except MalformedCall as error:
            return calls, end, error
        return calls, end, None

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        """Return the form of a turn with calls, as in `ToolCallParser`. Raises TaskError for a family without one."""
        raise TaskError(
            f"calls in the form of this model family ({type(self).__name__}) cannot be forced; leave the choice to the "
            "model (`auto`)"
        )

    def parse(self, text: str) -> ParsedTurn:
        turn = _TurnReading(self, text, calls=True).turn()
        if turn.calls or turn.error is not None:
            return turn
        lost = lost_call(turn.content, ArgumentTypes(self.tools).tools)
        return turn if lost is None else replace(turn, error=FOREIGN.format(lost), foreign=True)

    def plain(self, text: str) -> ParsedTurn:
        """Read a turn in which nothing counts as a call."""
        return _TurnReading(self, text, calls=False).turn()


class _TurnReading:
    """One reading of a turn."""

    def __init__(self, parser: FamilyParser, text: str, *, calls: bool) -> None:
        self._parser, self._text, self._reads_calls = parser, text, calls
        self._marks, self._any = _patterns(parser.marks if calls else (), parser.thinks)
        self._closing = dict(parser.thinks)
        self._parts: list[tuple[str, str, str]] = []
        """Pieces of the turn outside calls, as (text as written, its part of the answer, its part of the thoughts)."""
        self._thought = False
        self._calls: list[ToolCall] = []
        self._error: str | None = None
        self._tries = 0

    def turn(self) -> ParsedTurn:
        at = 0
        while at < len(self._text) and (found := self._any.search(self._text, at)) is not None:
            if found[0] in self._closing:
                at = self._open_thoughts(at, found.start(), found[0])
            elif found[0] in self._closing.values():
                at = self._stray_end(at, found)
            else:
                at = self._call(at, found)
        if self._error is None and (headless := self._headless(at, len(self._text))) is not None:
            self._error = str(headless)
        self._say(self._text[at:])
        content = self._unwrapped("".join(said for _, said, _ in self._parts))
        thoughts = [thought.strip() for _, _, thought in self._parts if thought]
        return ParsedTurn(
            content,
            tuple(self._calls),
            self._error,
            "\n\n".join(filter(None, thoughts)) if self._thought else None,
            self._unwrapped("".join(raw for raw, _, _ in self._parts)),
        )

    def _headless(self, at: int, end: int) -> MalformedCall | None:
        """Return the error if a piece of the answer has the end of a call; None if it has none."""
        if not self._reads_calls or self._parser.remains.search(self._text, at, end) is None:
            return None
        return MalformedCall("the beginning of the call is missing")

    def _say(self, text: str) -> None:
        self._parts.append((text, text, ""))

    def _think(self, raw: str, thought: str) -> None:
        self._parts.append((raw, "", thought))
        self._thought = True

    def _unwrapped(self, text: str) -> str:
        for wrapper in self._parser.wrappers:
            text = text.replace(wrapper, "")
        return text.strip()

    def _open_thoughts(self, at: int, begin: int, opening: str) -> int:
        """Read the thoughts that begin at `begin`. Return the position after them."""
        text, start, closing = self._text, begin + len(opening), self._closing[opening]
        end = self._end_of_thoughts(start, closing)
        after = end + len(closing)
        if end < 0:
            if any(said.strip() for _, said, _ in self._parts) or text[at:begin].strip():
                self._say(text[at:start])  # the answer only mentions the marker
                return start
            end = after = self._call_in_thoughts(start)
        self._say(text[at:begin])
        self._think(text[begin:after], text[start:end])
        return after

    def _end_of_thoughts(self, start: int, closing: str) -> int:
        """Return the position of the marker that ends the thoughts, or -1. A marker inside a whole call is text."""
        end, at = self._text.find(closing, start), start
        for _ in range(MAX_TRIES):
            mark = self._marks.search(self._text, at, end) if end >= 0 else None
            if mark is None:
                return end
            calls, stop, error = self._parser.calls_at(self._text, mark.start())
            at = mark.end()
            if calls and error is None and stop > end and not self._parser.bare:
                end, at = self._text.find(closing, stop), stop
        return end

    def _call_in_thoughts(self, start: int) -> int:
        """Return the position of the first call in thoughts that are not closed, else the end of the text."""
        if not self._parser.bare:
            for _, mark in zip(range(MAX_TRIES), self._marks.finditer(self._text, start), strict=False):
                calls, _, error = self._parser.calls_at(self._text, mark.start())
                if calls or (error is not None and not isinstance(error, NoCall)):
                    return mark.start()
        return len(self._text)

    def _stray_end(self, at: int, found: re.Match[str]) -> int:
        """Read a marker that ends thoughts whose beginning stands in the prompt or is missing."""
        if self._thought:
            self._say(self._text[at : found.end()])
        else:
            self._begin_again(found.start(), found.end())
        return found.end()

    def _begin_again(self, end: int, after: int) -> None:
        self._parts, self._calls, self._error = [], [], None
        self._think(self._text[:after], self._text[:end])

    def _call(self, at: int, mark: re.Match[str]) -> int:
        begin, stop, calls = mark.start(), at, list[ToolCall]()
        error = self._headless(at, begin)
        if error is None:
            calls, stop, error = self._parser.calls_at(self._text, begin)
        else:
            begin = at
        self._tries += 1
        if isinstance(error, NoCall) and self._parser.bare and not calls and self._tries < MAX_BARE:
            self._say(self._text[at : mark.end()])
            return mark.end()
        if error is not None and not self._thought:
            ends = [c for _, c in self._parser.thinks if c in self._text[mark.end() :]]
            if ends:  # the mark stands in thoughts that the prompt opened
                end = min(self._text.index(c, mark.end()) for c in ends)
                closing = next(c for c in ends if self._text.startswith(c, end))
                self._begin_again(end, end + len(closing))
                return end + len(closing)
        self._say(self._text[at:begin])
        self._calls += calls
        if error is None:
            return stop
        self._error = str(error)
        self._say(self._text[stop:])
        return len(self._text)


@cache
def _patterns(marks: tuple[str, ...], thinks: tuple[tuple[str, str], ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns that find marks, and marks or markers of thoughts."""

    def any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
        ordered = sorted(texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, ordered)) if ordered else NEVER)

    return any_of(marks), any_of((*marks, *(marker for pair in thinks for marker in pair)))
