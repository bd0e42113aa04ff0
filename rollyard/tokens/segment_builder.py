"""A segment that is still growing, and the check whether a new rendering of the conversation continues the segment."""

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
    """Reason for a broken prefix."""

    TEMPLATE_REWROTE = "TemplateRewrote"
    """The text before or between sampled turns has changed."""
    TURN_REWRITTEN = "TurnRewritten"
    """The rendering of a sampled turn, or of the turn's end, differs from the sampled text."""
    TURN_DROPPED = "TurnDropped"
    """In the rendering a sampled turn is missing, repeated or in another place."""
    THOUGHTS_DROPPED = "ThoughtsDropped"
    """The rendering leaves out a turn's thoughts."""
    HISTORY_CHANGED = "HistoryChanged"
    """An agent with its own loop sent a history that continues no earlier call.

    For example, the agent edited or shortened the history, started a sub-agent, or sent two calls in parallel.
    """


@dataclass(frozen=True)
class Break:
    turn: int
    """Index (from 0), among all sampled turns, of the first turn that is sampled in the new segment."""
    cause: BreakCause
    why: str = field(default="", compare=False)
    """Explanation for people. It names the turn and the place where the texts differ."""


@dataclass(frozen=True)
class PlacedTurn:
    """Sampled turn in a segment. The segment has the turn's ids from the index `first` on."""

    number: int
    first: int
    start: int
    """Position of the turn's beginning in the segment's text."""
    end: int
    """Position after the turn. If `ended`, position after the token that ended the turn."""
    ended: bool
    """Whether the segment has the token that ended the turn."""


@dataclass
class SegmentBuilder:
    """Text and tokens of a segment, up to the last sampled token."""

    text: str = ""
    """Rendered text before the last sampled turn. The ids before this turn decode to the same text."""
    sampled_text: tuple[str, ...] = ("",)
    """Possible texts of the last sampled turn, with the text of the token that ended it."""
    turns: list[PlacedTurn] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    weights_version: list[str | None] = field(default_factory=list)
    prompt_length: int | None = None
    """Number of tokens before the first turn that was sampled in this segment; None if there is no such turn yet."""
    finish_reasons: list[str] = field(default_factory=list)
    opened_by: Break | None = None

    def append_prompt(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.logprobs += [None] * len(ids)
        self.weights_version += [None] * len(ids)

    def as_context(self) -> SegmentBuilder:
        """Return a builder with the same text and ids, none of which was sampled in it."""
        made = SegmentBuilder(self.text, self.sampled_text, list(self.turns))
        made.append_prompt(self.ids)
        return made

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
        """Return the text after this segment in a rendering; None if the rendering does not begin with the segment."""
        if rendered.startswith(self.text):
            for sampled in self.sampled_text:
                if rendered.startswith(sampled, len(self.text)):
                    return rendered[len(self.text) + len(sampled) :]
        return None

    def difference(
        self, rendered: str, marked: MarkedRendering | None, sampled: Sequence[SampledTurn]
    ) -> tuple[BreakCause, str]:
        """Return why a rendering does not continue this segment, as a cause and an explanation for people."""
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
    """Yield the sampled turns whose exact text a rendering contains, in order.

    `marked`: rendering with placeholders, which shows where to search. A turn whose text differs is skipped. The search
    ends at the first text between turns that `rendered` does not contain.
    """
    position, free = 0, 0
    for before, seen in zip(marked.texts, marked.turns, strict=False):
        found = rendered.find(before, position)
        if found < 0:
            return
        position = found + len(before)
        turn = sampled[seen.number]
        for first, text in turn.possible_remainders(template):
            # The model may itself have sampled the end of `before` (an opening tag, a header), so the turn's text may begin
            # before `position`. It never begins before `free`: the previous turn and its stop token end there.
            start = rendered.rfind(text, max(found, free), position + len(text)) if text else -1
            if start >= 0:
                position = start + len(text)
                ended = bool(turn.end) and rendered.startswith(turn.end, position)
                free = position + len(turn.end) * ended
                yield PlacedTurn(seen.number, first, start, free, ended)
                break
