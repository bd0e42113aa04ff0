"""One sampled turn: its ids, and their text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollyard.tokens.chat_template import ChatTemplate

THINK_ENDS = "</think>"
CHANNEL = "<|channel|>"
ANALYSIS = CHANNEL + "analysis"
MESSAGE = "<|message|>"
NEXT_MESSAGE = "<|start|>assistant"
"""Marker after thoughts, which Harmony writes as a separate message. The answer with its header follows."""
MESSAGE_ENDS = "<|end|>" + NEXT_MESSAGE
REPLACEMENT = "\ufffd"
"""Text of bytes that form no whole character."""
TAIL = 4
"""Number of last ids of a prompt that are decoded together with a turn."""


@dataclass(frozen=True)
class SampledTurn:
    ids: list[int]
    text: str
    """Text of the ids without the token that ended them. For the template it is the message's content."""
    end: str
    """Text of the token that ended the turn; empty if a limit ended it."""
    spellings: tuple[str, ...]
    """Possible texts of the turn after a prompt: some tokenizers omit a space where a text begins.

    Empty if the turn ends or begins within a character.
    """
    marker: str = ""
    """Marker that ends the turn's thoughts; empty if there are none, or if the template has no marker."""

    @property
    def content_ids(self) -> list[int]:
        """The ids without the one that ended the turn."""
        return self.ids[:-1] if self.end else self.ids

    @property
    def thinks(self) -> bool:
        return bool(self.marker)

    def split_thoughts(self) -> tuple[str, str]:
        """Split into the thoughts with their end marker, and the rest. Without thoughts the first part is empty."""
        end = self.text.rfind(self.marker) + len(self.marker) if self.marker else 0
        return self.text[:end], self.text[end:]

    def possible_remainders(self, template: ChatTemplate) -> Iterator[tuple[int, str]]:
        """Yield the parts of the turn that a rendering may contain: index of the first id, and the text.

        These are the whole turn, or the part after its thoughts. That part may begin after white space, if the white
        space has tokens of its own.
        """
        yield from ((0, text) for text in self.spellings)
        if not self.thinks or not self.spellings:
            return
        ids, thoughts = self.content_ids, self.split_thoughts()[0]
        first = _ids_up_to_marker(template, ids, self.marker, thoughts.count(self.marker))
        while first < len(ids):
            before = template.decode(ids[:first])
            if self.text.startswith(before):
                yield first, self.text[len(before) :]
            if template.decode([ids[first]]).strip():
                return
            first += 1


def sampled_turn(template: ChatTemplate, ids: Sequence[int], prompt: Sequence[int] = ()) -> SampledTurn:
    """Read a turn that was sampled after a prompt. No part of it is ever tokenised."""
    ended = bool(ids) and ids[-1] in template.stop_ids
    content = list(ids[:-1] if ended else ids)
    text, end = template.decode(content), template.ends[ids[-1]] if ended else ""
    stands = end or not text.endswith(REPLACEMENT) or _is_stable(template, content, text)
    spellings = _spellings(template, content, text, prompt[-TAIL:]) if stands else ()
    return SampledTurn(list(ids), text, end, spellings, _marker(template, text))


def _marker(template: ChatTemplate, text: str) -> str:
    if not template.in_channels:
        return THINK_ENDS if THINK_ENDS in template.source and THINK_ENDS in text else ""
    thoughts = text.rfind(ANALYSIS)
    return NEXT_MESSAGE if thoughts >= 0 and NEXT_MESSAGE in text[thoughts:] else ""


def _is_stable(template: ChatTemplate, content: Sequence[int], text: str) -> bool:
    """Return whether half a character at the end decodes to the same text before another byte. With byte tokens it may not."""
    byte = "\x01"
    return (
        template.decode([*content, *template.encode_behind(next(iter(template.stop_ids), None), byte)]) == text + byte
    )


def _spellings(template: ChatTemplate, content: Sequence[int], text: str, tail: Sequence[int]) -> tuple[str, ...]:
    """Decode the turn after the prompt's last ids; also alone, if the tokenizer does not return texts unchanged."""
    before, together = template.decode(tail), template.decode([*tail, *content])
    if not together.startswith(before):
        return () if template.exact else (text,)
    behind = together[len(before) :]
    return (behind,) if behind == text or template.exact else (behind, text)


def _ids_up_to_marker(template: ChatTemplate, ids: Sequence[int], marker: str, times: int) -> int:
    """Return the smallest number of leading ids whose text contains the marker `times` times."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if template.decode(ids[:middle]).count(marker) >= times:
            high = middle
        else:
            low = middle + 1
    return low
