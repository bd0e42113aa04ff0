"""A segment that is still growing, and the check whether a new rendering of the conversation continues the segment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from rollyard.tokens.template_rendering import THOUGHTS, MarkedRendering, Renderer, SampledMessage
from rollyard.trajectory import Segment

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
    """Position of the turn's beginning in the rendering."""
    end: int
    """Position after the turn. If `ended`, position after the token that ended the turn."""
    ended: bool
    """Whether the segment has the token that ended the turn."""
    respelled: bool = False
    """Whether the rendering has another spelling of the turn."""


@dataclass
class SegmentBuilder:
    """Tokens of a segment up to the last sampled token, and the rendering with which the segment began or went on."""

    rendered: str = ""
    """Rendering up to the beginning of the last sampled turn. It has the template's spelling of earlier turns."""
    last: SampledMessage | None = None
    """Last sampled turn; None if no turn was sampled."""
    turns: list[PlacedTurn] = field(default_factory=list)
    """Turns in the segment. Their positions are those in `rendered`; for the last turn, those of its sampled text."""
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

    def append_sampled(
        self,
        answer: SampledMessage,
        rendered: str,
        logprobs: Sequence[float | None],
        weights_version: Sequence[str | None],
        finish_reason: str,
    ) -> None:
        """Append a turn that was sampled after the rendering, of which the segment has all ids."""
        turn = answer.turn
        end = len(rendered) + len(turn.text) + len(turn.end)
        self.rendered, self.last = rendered, answer
        self.turns.append(PlacedTurn(answer.number, 0, len(rendered), end, bool(turn.end)))
        if self.prompt_length is None:
            self.prompt_length = len(self.ids)
        self.ids += turn.ids
        self.logprobs += logprobs
        self.weights_version += weights_version
        self.finish_reasons.append(finish_reason)

    def as_context(self) -> SegmentBuilder:
        """Return a builder with the same rendering and ids, none of which was sampled in it."""
        made = SegmentBuilder(self.rendered, self.last, list(self.turns))
        made.append_prompt(self.ids)
        return made

    def segment(self, prompt_length: int) -> Segment:
        extras: dict[str, Any] = {"finish_reasons": list(self.finish_reasons)}
        if respelled := sum(placed.respelled for placed in self.turns):
            extras["respelled"] = respelled
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
        """Return the text after this segment in a rendering; None if the rendering has not exactly the segment's text."""
        if self.last is not None and rendered.startswith(self.rendered):
            turn, start = self.last.turn, len(self.rendered)
            for text in turn.spellings:
                if rendered.startswith(text + turn.end, start):
                    return rendered[self._place_last(start + len(text), respelled=False) :]
        return None

    def text_after_end(self, rendered: str, renderer: Renderer) -> str | None:
        """Return the text after this segment in a rendering that may have another spelling of the last turn, and ends the
        turn with the first text that ends turns.

        None if the rendering changes anything else. None too if the sampled turn itself has such a text: the first one is
        not certain to be the end then.
        """
        last = self._continued(rendered)
        if last is None or renderer.end_in(last.turn.text, 0) is not None:
            return None
        return self._text_after(last, rendered, [renderer.end_in(rendered, len(self.rendered))], renderer)

    def text_after_fields(self, rendered: str, marked: MarkedRendering, renderer: Renderer) -> str | None:
        """Return the same text as `text_after_end`, if placeholders show where the last turn ends."""
        last, rest = self._continued(rendered), marked.texts[-1]
        if last is None or not rendered.endswith(rest) or (marked.turns and marked.turns[-1].number != last.number):
            return None
        after = len(rendered) - len(rest)
        return self._text_after(last, rendered, [renderer.end_in(rendered, after), after], renderer)

    def _continued(self, rendered: str) -> SampledMessage | None:
        """Return the last turn if a rendering goes on from the segment's and may have another spelling of this turn."""
        known = self.last is not None and self.last.turn.spellings and rendered.startswith(self.rendered)
        return self.last if known else None

    def _text_after(
        self, last: SampledMessage, rendered: str, ends: Iterable[int | None], renderer: Renderer
    ) -> str | None:
        start = len(self.rendered)
        for end in dict.fromkeys(ends):
            if end is None or end < start or not rendered.startswith(last.turn.end, end):
                continue
            if renderer.shows(last, rendered[start:end]):
                return rendered[self._place_last(end, respelled=True) :]
        return None

    def _place_last(self, end: int, *, respelled: bool) -> int:
        """Set the position of the last turn's end in the rendering. Return the position after the segment."""
        assert self.last is not None
        end += len(self.last.turn.end)
        self.turns[-1] = replace(self.turns[-1], end=end, respelled=respelled)
        return end

    def difference(
        self, rendered: str, marked: MarkedRendering | None, sampled: Sequence[SampledMessage]
    ) -> tuple[BreakCause, str]:
        """Return why a rendering does not continue this segment, as a cause and words for people, which count turns from 1."""
        assert self.last is not None
        then = self.rendered + self.last.turn.text + self.last.turn.end
        pairs = enumerate(zip(then, rendered, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(then), len(rendered)))
        place = next((placed for placed in self.turns if same < placed.end), self.turns[-1])
        number, inside = place.number, same >= place.start
        old, new = then[same : same + QUOTED], rendered[same : same + QUOTED]
        where = f"{'in' if inside else 'before'} turn {number + 1}, after {then[max(same - QUOTED, 0) : same]!r}, "
        where += (
            f"{old!r} was sampled, but the template has {new!r}" if inside else f"the template had {old!r}, now {new!r}"
        )
        if marked is not None:
            had, shown = [placed.number for placed in self.turns], [seen.number for seen in marked.turns]
            parts = {seen.number: seen.parts for seen in marked.turns}.get(number, THOUGHTS)
            thinks = sampled[number].parsed.thoughts is not None
            if shown == had and place.first == 0 and thinks and THOUGHTS not in parts:
                return (
                    BreakCause.THOUGHTS_DROPPED,
                    f"the template leaves out the thoughts of turn {number + 1}: {where}",
                )
            if shown != had and not marked.mangled and (set(had) - set(shown) or shown != sorted(set(shown))):
                now, before = ([one + 1 for one in turns] for turns in (shown, had))
                return BreakCause.TURN_DROPPED, f"the template shows the sampled turns {now}, before {before}: {where}"
        return BreakCause.TURN_REWRITTEN if inside else BreakCause.TEMPLATE_REWROTE, where
