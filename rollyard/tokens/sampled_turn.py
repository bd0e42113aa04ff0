"""One sampled turn: its ids, and how they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollyard.tokens.chat_template import ChatTemplate

THINK_ENDS = "</think>"
CHANNEL = "<|channel|>"
ANALYSIS = CHANNEL + "analysis"
MESSAGE = "<|message|>"
NEXT_MESSAGE = "<|start|>assistant"
"""Harmony writes thoughts as a message of their own; what follows this is the answer, its header included."""
MESSAGE_ENDS = "<|end|>" + NEXT_MESSAGE
HALF = "\ufffd"
"""How bytes read that are no whole character."""
TAIL = 4
"""Ids of a prompt that a turn is read behind."""


@dataclass(frozen=True)
class SampledTurn:
    ids: list[int]
    text: str
    """Text of the ids, without the token that ended them: what the message says that the template is given."""
    end: str
    """Text of the token that ended it; empty where a limit did."""
    spellings: tuple[str, ...]
    """How the text may read behind a prompt: some tokenizers leave out a space where a text begins. None where its bytes
    run into the text beside it."""
    marker: str = ""
    """Marker that ends the thoughts in it; empty where there are none, or the template knows of none."""

    @property
    def content_ids(self) -> list[int]:
        """The ids without the one that ended them."""
        return self.ids[:-1] if self.end else self.ids

    @property
    def thinks(self) -> bool:
        return bool(self.marker)

    def split_thoughts(self) -> tuple[str, str]:
        """Thoughts with what ends them, and the rest. The first is empty where there are none."""
        end = self.text.rfind(self.marker) + len(self.marker) if self.marker else 0
        return self.text[:end], self.text[end:]

    def possible_remainders(self, template: ChatTemplate) -> Iterator[tuple[int, str]]:
        """Remains of the turn that may be there: from which of the ids on, and how these read.

        All of it, or what stands behind its thoughts, with the white space before that or without as much of it as is
        tokens of its own.
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
    """Read a turn that was sampled behind a prompt; nothing of it is ever tokenised."""
    ended = bool(ids) and ids[-1] in template.stop_ids
    said = list(ids[:-1] if ended else ids)
    text, end = template.decode(said), template.ends[ids[-1]] if ended else ""
    stands = end or not text.endswith(HALF) or _is_stable(template, said, text)
    spellings = _spellings(template, said, text, prompt[-TAIL:]) if stands else ()
    return SampledTurn(list(ids), text, end, spellings, _marker(template, text))


def _marker(template: ChatTemplate, text: str) -> str:
    if not template.in_channels:
        return THINK_ENDS if THINK_ENDS in template.source and THINK_ENDS in text else ""
    thoughts = text.rfind(ANALYSIS)
    return NEXT_MESSAGE if thoughts >= 0 and NEXT_MESSAGE in text[thoughts:] else ""


def _is_stable(template: ChatTemplate, said: Sequence[int], text: str) -> bool:
    """Whether half a character at the end reads the same before another byte; where bytes are tokens it may not."""
    byte = "\x01"
    return template.decode([*said, *template.encode_behind(next(iter(template.stop_ids), None), byte)]) == text + byte


def _spellings(template: ChatTemplate, said: Sequence[int], text: str, tail: Sequence[int]) -> tuple[str, ...]:
    """Behind the prompt's last ids, and by itself where the tokenizer's own texts do not read as they were written."""
    before, together = template.decode(tail), template.decode([*tail, *said])
    if not together.startswith(before):
        return () if template.exact else (text,)
    behind = together[len(before) :]
    return (behind,) if behind == text or template.exact else (behind, text)


def _ids_up_to_marker(template: ChatTemplate, ids: Sequence[int], marker: str, times: int) -> int:
    """Fewest leading ids whose text has the marker so many times."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if template.decode(ids[:middle]).count(marker) >= times:
            high = middle
        else:
            low = middle + 1
    return low
