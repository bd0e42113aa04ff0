"""One sampled turn: its ids, and where in them the thoughts end that a template may leave out later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.tokens.template import ChatTemplate

THINK_ENDS = "</think>"
CHANNEL = "<|channel|>"
ANALYSIS = CHANNEL + "analysis"
NEXT_MESSAGE = "<|start|>assistant"
"""Harmony writes thoughts as a message of their own; what follows this is the answer, its header included."""


@dataclass(frozen=True)
class SampledTurn:
    ids: list[int]
    text: str
    """Of the ids, without the token that ended them."""
    before: str
    """The text that stood between the turn before and this one when it was sampled."""
    rest: list[int] | None = None
    """The ids behind the thoughts, where the template knows thoughts and there are some."""
    rest_text: str = ""
    space: str = ""
    """White space between the thoughts and the rest, in neither."""

    def shown(self, whole: bool) -> tuple[list[int], str]:
        """Ids and text, with the thoughts or without."""
        return (self.ids, self.text) if whole or self.rest is None else (self.rest, self.rest_text)


def sampled_turn(template: ChatTemplate, ids: Sequence[int], before: str) -> SampledTurn:
    """Reads a turn's text; nothing of it is ever tokenised."""
    ended = bool(ids) and ids[-1] in template.stop_ids
    said = list(ids[:-1] if ended else ids)
    text = template.decode(said)
    if harmony(template):
        thoughts = text.rfind(ANALYSIS)
        end = text.find(NEXT_MESSAGE, thoughts) if thoughts >= 0 else -1
        marker = NEXT_MESSAGE
    else:
        end = text.rfind(THINK_ENDS) if THINK_ENDS in template.source else -1
        marker = THINK_ENDS
    if end < 0:
        return SampledTurn(list(ids), text, before)
    end += len(marker)
    start, rest_text = _behind(template, said, marker, text.count(marker, 0, end)), text[end:]
    if harmony(template):
        return SampledTurn(list(ids), text, before, list(ids[start:]), rest_text)
    space = rest_text[: len(rest_text) - len(rest_text.lstrip())]
    return SampledTurn(
        list(ids), text, before, list(ids[_past_space(template, said, start) :]), rest_text.lstrip(), space
    )


def harmony(template: ChatTemplate) -> bool:
    """Whether turns are made of messages in channels (gpt-oss)."""
    return CHANNEL in template.source


def _behind(template: ChatTemplate, ids: list[int], marker: str, times: int) -> int:
    """Fewest leading ids whose text has the marker so many times."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if template.decode(ids[:middle]).count(marker) >= times:
            high = middle
        else:
            low = middle + 1
    return low


def _past_space(template: ChatTemplate, ids: list[int], start: int) -> int:
    """A template that leaves thoughts out trims what is left, or shows this white space as text of its own."""
    while start < len(ids) and not template.decode([ids[start]]).strip():
        start += 1
    return start
