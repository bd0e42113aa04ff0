"""Text out of ids as they arrive: never half a character, never the beginning of a tool call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_HELD = 16
"""Ids that make no whole character by then are bytes that will never make one."""
REPLACEMENT = "\ufffd"
CALL_MARKS = (
    "<tool_call", "[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁call", "<|channel|>", "<|start|>", "<function=", "<|tool_call",
)  # fmt: skip
"""How calls begin in the families that have a parser; from there on nothing is said before the turn is whole."""


class Detokenizer:
    """Decodes a window of the last ids, so that what a tokenizer does at the start of a text does not show."""

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        """`before`: ids of whole characters, of which nothing is told."""
        self._decode = decode
        self._ids: list[int] = list(before)
        self._start = 0
        """Of the window."""
        self._said = len(before)
        """So many ids have become text."""

    def feed(self, ids: Sequence[int]) -> str:
        """Whole characters; what may still grow into one is held back."""
        self._ids += ids
        text = self._new()
        if text.endswith(REPLACEMENT) and len(self._ids) - self._said < MAX_HELD:
            return ""
        return self._take(text)

    def flush(self) -> str:
        return self._take(self._new())

    def _new(self) -> str:
        before = self._decode(self._ids[self._start : self._said])
        return self._decode(self._ids[self._start :])[len(before) :]

    def _take(self, text: str) -> str:
        if text:
            self._start, self._said = self._said, len(self._ids)
        return text


class Speech:
    """What of a turn the caller may be told so far. `stops`: texts that end a turn and are not part of it."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop_ids: Sequence[int],
        stops: Sequence[str],
        *,
        calls: bool,
        trim: bool,
        lead: Sequence[int] = (),
    ) -> None:
        """`calls`: there may be tool calls. `trim`: space around the turn is left out. `lead`: ids with which it began."""
        self._detokenizer = Detokenizer(decode, lead)
        self._led = bool(lead)
        self._stop_ids = frozenset(stop_ids)
        self._marks = (*stops, *(CALL_MARKS if calls else ()))
        self._calls, self._trim = calls, trim
        self._longest = max(map(len, self._marks), default=0)
        self._text = ""
        self._told = ""
        self._at = 0
        """So much of the text has been told or left out."""

    def feed(self, ids: Sequence[int]) -> str:
        """What the caller may be told now."""
        self._text += self._detokenizer.feed([i for i in ids if i not in self._stop_ids])
        if self._trim and not self._told and not self._led:
            self._at = len(self._text) - len(self._text.lstrip())
        end = max(self._at, self._safe())
        delta = self._text[self._at : end]
        self._at = end
        self._told += delta
        return delta

    def finish(self, content: str) -> str:
        """What is left to tell of a turn that says `content` in all. Nothing where that begins otherwise after all."""
        return content[len(self._told) :] if content.startswith(self._told) else ""

    def _safe(self) -> int:
        text, end = self._text, len(self._text)
        if self._calls and text[self._at - len(self._told) : self._at + 1].lstrip().startswith(("{", "[")):
            return self._at - len(self._told)  # a call may be bare JSON
        for mark in self._marks:
            found = text.find(mark, max(0, self._at - len(mark)))
            end = min(end, found) if found >= 0 else end
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if any(mark.startswith(text[-size:]) for mark in self._marks if len(mark) > size):
                end = min(end, len(text) - size)
                break
        return len(text[:end].rstrip()) if self._trim else end
