"""One sampled turn, as ids and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.token_bytes import REPLACEMENT

THINK_ENDS = "</think>"
CHANNEL = "<|channel|>"
ANALYSIS = CHANNEL + "analysis"
MESSAGE = "<|message|>"
NEXT_MESSAGE = "<|start|>assistant"
"""Marker between thoughts and answer, which are separate messages in Harmony, the form of gpt-oss."""
MESSAGE_ENDS = "<|end|>" + NEXT_MESSAGE
TAIL = 4
"""A turn is decoded together with this many ids from the end of its prompt."""


@dataclass(frozen=True)
class SampledTurn:
    ids: list[int]
    text: str
    """Text of the turn without the token that ended it. The template gets this text as the content of a message."""
    end: str
    """Text of the token that ended the turn; empty if a limit ended the turn."""
    spellings: tuple[str, ...]
    """Possible texts of the turn within a rendering. There may be two, because some tokenizers omit a space at the
    beginning of a text. Empty if the turn begins or ends within a character, so that its text depends on the ids
    around it."""
    marker: str = ""
    """Marker after the turn's thoughts; empty if the turn has no thoughts or the template has no marker."""

    @property
    def content_ids(self) -> list[int]:
        """Ids of the turn without the id that ended it."""
        return self.ids[:-1] if self.end else self.ids

    @property
    def thinks(self) -> bool:
        return bool(self.marker)

    def split_thoughts(self) -> tuple[str, str]:
        """Return (thoughts with their marker, remaining text). The first part is empty if the turn has no thoughts."""
        end = self.text.rfind(self.marker) + len(self.marker) if self.marker else 0
        return self.text[:end], self.text[end:]

    def possible_remainders(self, template: ChatTemplate) -> Iterator[tuple[int, str]]:
        """Yield the parts of the turn that a rendering may contain, as (index of the first id, text).

        First comes the whole turn. If the turn has thoughts, the part after the thoughts follows. If this part begins with
        tokens of white space, it is yielded several times: with all of them, without the first, and so on.
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
    """Make a turn from ids that were sampled after a prompt. The turn keeps these ids."""
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
    """Return whether an incomplete character at the end decodes to the same text if another byte follows.

    It may decode to another text if the tokenizer has tokens for single bytes.
    """
    byte = "\x01"
    return (
        template.decode([*content, *template.encode_behind(next(iter(template.stop_ids), None), byte)]) == text + byte
    )


def _spellings(template: ChatTemplate, content: Sequence[int], text: str, tail: Sequence[int]) -> tuple[str, ...]:
    """Return the possible texts of a turn: decoded together with the last ids of its prompt, and decoded alone.

    The second text is needed only for a tokenizer that does not return texts unchanged.
    """
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
