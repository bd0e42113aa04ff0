"""Decodes ids to text as they arrive. Text is held back while it may be the beginning of a tool call or of a stop
string, and ids are held back while they may be a part of a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollyard.tokens.token_bytes import REPLACEMENT

MAX_HELD_IDS = 16
"""Greatest number of ids that are looked at for the end of a whole character. If there is none, all text is returned."""


class Detokenizer:
    """Decodes a window of the last ids. The window begins before the new ids, because tokenizers treat the start of a
    text in special ways."""

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        """`before`: earlier ids, which end with a whole character; their text is not returned."""
        self._decode = decode
        self._ids: list[int] = list(before)
        self._start = 0
        """Start of the window."""
        self._sent = len(before)
        """Position of the first id whose text is not returned yet. The ids `before` come earlier, and so do the ids whose
        text was returned."""

    def feed(self, ids: Sequence[int]) -> str:
        """Return whole characters. The last ids are held back as long as they may still become a character.

        So the whole text does not depend on the chunks in which the ids arrive.
        """
        self._ids += ids
        new = len(self._ids) - self._sent
        for held in range(min(new, MAX_HELD_IDS)):
            text = self._decode_new(len(self._ids) - held)
            if not text.endswith(REPLACEMENT):
                return self._without_sent(text, len(self._ids) - held)
        return self.flush() if new >= MAX_HELD_IDS else ""

    def flush(self) -> str:
        return self._without_sent(self._decode_new(len(self._ids)), len(self._ids))

    def _decode_new(self, end: int) -> str:
        before = self._decode(self._ids[self._start : self._sent])
        return self._decode(self._ids[self._start : end])[len(before) :]

    def _without_sent(self, text: str, end: int) -> str:
        if text:
            self._start, self._sent = self._sent, end
        return text


class StreamingText:
    """Finds the part of a turn's text that may be sent already. `stops`: strings that end a turn and are not part of
    it."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop_ids: Sequence[int],
        stops: Sequence[str],
        *,
        marks: Sequence[str],
        trim: bool,
        lead: Sequence[int] = (),
    ) -> None:
        """`marks`: texts that begin a tool call, and are held back with all text after them. `trim`: strip space around
        the turn. `lead`: ids of the turn's beginning,
        if the caller gave a beginning."""
        self._detokenizer = Detokenizer(decode, lead)
        self._continued_text = bool(lead)
        self._stop_ids = frozenset(stop_ids)
        self._marks = (*stops, *marks)
        self._trim = trim
        self._longest = max(map(len, self._marks), default=0)
        self._text = ""
        self._sent = ""
        self._position = 0
        """Length of the text that was sent or skipped."""
        self.passed_bytes = 0
        """Length of the same text in bytes."""

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that can be sent now."""
        self._text += self._detokenizer.feed([i for i in ids if i not in self._stop_ids])
        before = self._position
        if self._trim and not self._sent and not self._continued_text:
            self._position = len(self._text) - len(self._text.lstrip())
        end = max(self._position, self._safe_length())
        delta = self._text[self._position : end]
        self._position = end
        self.passed_bytes += len(self._text[before:end].encode("utf-8", "replace"))
        self._sent += delta
        return delta

    def finish(self, content: str) -> str:
        """Return the part of `content` that has not been sent; empty if `content` does not begin with the sent text.
        `content`: text of the complete turn for the caller, without tool calls.
        """
        return content[len(self._sent) :] if content.startswith(self._sent) else ""

    def _safe_length(self) -> int:
        text, end = self._text, len(self._text)
        for mark in self._marks:
            found = text.find(mark, max(0, self._position - len(mark)))
            end = min(end, found) if found >= 0 else end
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if any(mark.startswith(text[-size:]) for mark in self._marks if len(mark) > size):
                end = min(end, len(text) - size)
                break
        return len(text[:end].rstrip()) if self._trim else end
