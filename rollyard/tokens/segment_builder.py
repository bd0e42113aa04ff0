"""A segment under way, and whether a new rendering of the conversation still continues it."""

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
    """Why a prefix broke."""

    TEMPLATE_REWROTE = "TemplateRewrote"
    """The text before or between sampled turns came out differently."""
    TURN_REWRITTEN = "TurnRewritten"
    """The template writes a sampled turn, or its end, otherwise than it was sampled."""
    TURN_DROPPED = "TurnDropped"
    """A sampled turn is gone, repeated or elsewhere."""
    THOUGHTS_DROPPED = "ThoughtsDropped"
    """The template leaves out what a turn says before the end of its thoughts."""
    HISTORY_CHANGED = "HistoryChanged"
    """An agent of its own came with a history that no call before had: edited, shortened, a sub-agent's, or at once with
    another call."""


@dataclass(frozen=True)
class Break:
    turn: int
    """Number of the turn that the new segment opens for, from 0."""
    cause: BreakCause
    why: str = field(default="", compare=False)
    """For people: which turn, and where the texts differ."""


@dataclass(frozen=True)
class PlacedTurn:
    """A sampled turn in a segment: by its ids, from the `first` of them on."""

    number: int
    first: int
    start: int
    """In the segment's text; so too `end`."""
    end: int
    ended: bool
    """With the token that ended it."""


@dataclass
class SegmentBuilder:
    """Everything up to the last sampled token."""

    text: str = ""
    """Text that the template wrote when the last turn was sampled: what the ids say that stand before it."""
    sampled_text: tuple[str, ...] = ("",)
    """How that turn reads, with its end."""
    turns: list[PlacedTurn] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    weights_version: list[str | None] = field(default_factory=list)
    prompt_length: int | None = None
    """Known from the first sampled turn on."""
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
        """Return what a rendering has behind all that stands here already; None where it has something else in its place."""
        if rendered.startswith(self.text):
            for said in self.sampled_text:
                if rendered.startswith(said, len(self.text)):
                    return rendered[len(self.text) + len(said) :]
        return None

    def difference(
        self, rendered: str, marked: MarkedRendering | None, sampled: Sequence[SampledTurn]
    ) -> tuple[BreakCause, str]:
        """Reason that keeps a rendering from continuing this segment: the cause, and for people the turn and the place."""
        then = self.text + "".join(self.sampled_text[:1])
        pairs = enumerate(zip(then, rendered, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(then), len(rendered)))
        place = next((placed for placed in self.turns if same < placed.end), self.turns[-1])
        number, inside = place.number, same >= place.start
        old, new = then[same : same + QUOTED], rendered[same : same + QUOTED]
        where = f"{'in' if inside else 'before'} turn {number}, behind {then[max(same - QUOTED, 0) : same]!r}, "
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
    """The sampled turns that stand in a rendering word for word, in their order.

    `marked` says where to look. A turn of which the rendering has another text is left out: it stays text.
    """
    position, free = 0, 0
    for before, seen in zip(marked.texts, marked.turns, strict=False):
        found = rendered.find(before, position)
        if found < 0:
            return
        position = found + len(before)
        turn = sampled[seen.number]
        for first, text in turn.possible_remainders(template):
            # the turn may have sampled the end of what stands before its placeholder: an opening tag, a header;
            # never the token that ended the turn before it, which stands there by its id
            start = rendered.rfind(text, max(found, free), position + len(text)) if text else -1
            if start >= 0:
                position = start + len(text)
                ended = bool(turn.end) and rendered.startswith(turn.end, position)
                free = position + len(turn.end) * ended
                yield PlacedTurn(seen.number, first, start, free, ended)
                break
