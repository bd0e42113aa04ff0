"""A segment that is still growing. It decides whether a new rendering of the conversation continues it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rollyard.kinds.rollout import Segment
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_turn import SampledTurn
from rollyard.tokens.template_rendering import THOUGHTS, MarkedRendering

QUOTED = 40


class BreakCause(StrEnum):
    """The reason for a broken prefix."""

    TEMPLATE_REWROTE = "TemplateRewrote"
    """The rendering has other text before or between sampled turns."""
    TURN_REWRITTEN = "TurnRewritten"
    """The template writes a sampled turn, or its end, differently from the sampled text."""
    TURN_DROPPED = "TurnDropped"
    """A sampled turn is missing, repeated or in another place."""
    THOUGHTS_DROPPED = "ThoughtsDropped"
    """The template leaves out a turn's thoughts."""
    HISTORY_CHANGED = "HistoryChanged"
    """An agent with its own loop sent a history that no earlier call had.

    The history was edited or shortened, comes from a sub-agent, or was sent in parallel with another call.
    """


@dataclass(frozen=True)
class Break:
    turn: int
    """Number of the turn for which the new segment is opened, from 0."""
    cause: BreakCause
    why: str = field(default="", compare=False)
    """Explanation for people: the turn, and the place where the texts differ."""


@dataclass(frozen=True)
class PlacedTurn:
    """A sampled turn in a segment. Its ids from index `first` on are there."""

    number: int
    first: int
    start: int
    """Position in the segment's text, as is `end`."""
    end: int
    ended: bool
    """Whether the token that ended the turn is included."""


@dataclass
class SegmentBuilder:
    """Everything of a segment up to its last sampled token."""

    text: str = ""
    """Text of the template before the last sampled turn. It equals the text of the ids there."""
    sampled_text: tuple[str, ...] = ("",)
    """Possible texts of the last sampled turn, with its end."""
    turns: list[PlacedTurn] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    weights_version: list[str | None] = field(default_factory=list)
    prompt_length: int | None = None
    """None until the segment has a sampled turn."""
    finish_reasons: list[str] = field(default_factory=list)
    opened_by: Break | None = None

    def append_prompt(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.logprobs += [None] * len(ids)
        self.weights_version += [None] * len(ids)

    def segment(self, prompt_length: int) -> Segment:
        extras: dict[str, Any] = {"finish_reasons": list(self.finish_reasons)}
        if self.opened_by is not None:
            extras["opened_by"] = {"cause": str(self.opened_by.cause), "why": self.opened_by.why}
        return Segment(
            token_ids=list(self.ids),
            loss_mask=[int(logprob is not None) for logprob in self.logprobs],
            logprobs=list(self.logprobs),
            weights_version=list(self.weights_version),
            prompt_length=prompt_length,
            extras=extras,
        )

    def text_after(self, rendered: str) -> str | None:
        """Return the part of a rendering after this segment's text; None if the rendering does not begin with that text."""
        if rendered.startswith(self.text):
            for sampled in self.sampled_text:
                if rendered.startswith(sampled, len(self.text)):
                    return rendered[len(self.text) + len(sampled) :]
        return None

    def difference(
        self, rendered: str, marked: MarkedRendering | None, sampled: Sequence[SampledTurn]
    ) -> tuple[BreakCause, str]:
        """Return why a rendering does not continue this segment: the cause, and for people the turn and the place."""
        then = self.text + "".join(self.sampled_text[:1])
        pairs = enumerate(zip(then, rendered, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(then), len(rendered)))
        place = next((placed for placed in self.turns if same < placed.end), self.turns[-1])
        number, inside = place.number, same >= place.start
        old, new = then[same : same + QUOTED], rendered[same : same + QUOTED]
        where = f"{'in' if inside else 'before'} turn {number}, after {then[max(same - QUOTED, 0) : same]!r}, "
        where += (
            f"{old!r} was sampled, but the template has {new!r}" if inside else f"the template had {old!r}, now {new!r}"
        )
        if marked is not None:
            had, shown = [placed.number for placed in self.turns], [seen.number for seen in marked.turns]
            parts = {seen.number: seen.parts for seen in marked.turns}.get(number, THOUGHTS)
            if shown == had and place.first == 0 and sampled[number].thinks and THOUGHTS not in parts:
                return BreakCause.THOUGHTS_DROPPED, f"the template leaves out the thoughts of turn {number}: {where}"
            if shown != had and not marked.mangled and (set(had) - set(shown) or shown != sorted(set(shown))):
                return BreakCause.TURN_DROPPED, f"the template shows the sampled turns {shown}, before {had}: {where}"
        return BreakCause.TURN_REWRITTEN if inside else BreakCause.TEMPLATE_REWROTE, where


def locate_turns(
    rendered: str, marked: MarkedRendering, sampled: Sequence[SampledTurn], template: ChatTemplate
) -> Iterator[PlacedTurn]:
    """Yield the sampled turns that a rendering contains word for word, in order.

    `marked` gives the places to search. A turn that has another text in the rendering is skipped and stays text.
    """
    position, free = 0, 0
    for before, seen in zip(marked.texts, marked.turns, strict=False):
        found = rendered.find(before, position)
        if found < 0:
            return
        position = found + len(before)
        turn = sampled[seen.number]
        for first, text in turn.possible_remainders(template):
            # A turn may have sampled the end of the text before its placeholder (an opening tag, a header), but never
            # the token that ended the previous turn: that one is present by its id.
            start = rendered.rfind(text, max(found, free), position + len(text)) if text else -1
            if start >= 0:
                position = start + len(text)
                ended = bool(turn.end) and rendered.startswith(turn.end, position)
                free = position + len(turn.end) * ended
                yield PlacedTurn(seen.number, first, start, free, ended)
                break
