"""A segment under way, and whether a new rendering of the conversation still continues it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rollyard.kinds.rollout import Segment
from rollyard.tokens.rendering import CALL, THOUGHTS, Rendering, Seen
from rollyard.tokens.turn import SampledTurn

QUOTED = 40
TAILS = (64, 32, 16, 8, 4)
LONGEST_HEADER = 256


class Cause(StrEnum):
    """Why a prefix broke."""

    TEMPLATE_REWROTE = "TemplateRewrote"
    """The text before or between sampled turns came out differently."""
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
    cause: Cause
    why: str = field(default="", compare=False)
    """For people: which turn, and where the texts differ."""


@dataclass(frozen=True)
class Placed:
    """A sampled turn in a segment."""

    number: int
    whole: bool
    """With its thoughts, if it has any."""


@dataclass
class Track:
    """Everything up to the last sampled token."""

    texts: list[str] = field(default_factory=list)
    """Before each of `turns`."""
    turns: list[Placed] = field(default_factory=list)
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

    def drop_last(self) -> None:
        del self.ids[-1], self.logprobs[-1], self.weights_version[-1]

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

    def difference(self, rendering: Rendering, sampled: Sequence[SampledTurn]) -> tuple[Cause, str] | None:
        """What keeps the rendering from continuing this segment; None when it does."""
        then, now = [placed.number for placed in self.turns], [seen.number for seen in rendering.turns]
        if then != now:
            return Cause.TURN_DROPPED, f"the template shows the sampled turns {now}, before it showed {then}"
        for i, (placed, seen) in enumerate(zip(self.turns, rendering.turns, strict=True)):
            whole, turn = shown_whole(seen, sampled[seen.number]), sampled[seen.number]
            if whole != placed.whole:
                what = "leaves out" if placed.whole else "shows again"
                return Cause.THOUGHTS_DROPPED, f"the template {what} the thoughts of turn {seen.number}"
            if not _same_before(self.texts[i], rendering.texts[i], seen, turn.shown(whole)[1]):
                return Cause.TEMPLATE_REWROTE, _where(seen.number, self.texts[i], rendering.texts[i])
        return None


def shown_whole(seen: Seen, turn: SampledTurn) -> bool:
    return turn.rest is None or seen.parts.startswith(THOUGHTS)


def text_before(rendered: str, seen: Seen, turn: SampledTurn) -> str:
    """The text to put before a turn's ids in a new segment: without the beginning that the ids have themselves.

    Harmony's header of an answer, the opening tag of thoughts and a call's own syntax are the model's to sample; where
    they begin, the text ends that stood before the turn when it was sampled.
    """
    whole = shown_whole(seen, turn)
    for size in TAILS:
        at = rendered.rfind(turn.before[-size:]) if len(turn.before) >= size else -1
        if at >= 0:
            head, header = rendered[: at + size], rendered[at + size :]
            spaces = not whole and not header.strip()  # what is left of the turn begins behind them
            own = len(header) <= LONGEST_HEADER and _own(header, seen, turn.shown(whole)[1])
            return head if own and not spaces else rendered
    return rendered


def _same_before(then: str, now: str, seen: Seen, shown: str) -> bool:
    """White space right before a turn is no difference: templates without a generation prompt (Mistral's) put some
    there that was the model's to sample."""
    head = then.rstrip()
    return now.startswith(head) and _own(now[len(head) :], seen, shown)


def _own(header: str, seen: Seen, shown: str) -> bool:
    """Whether what the template writes right before a turn's placeholder is how the turn itself begins."""
    return seen.parts.startswith(CALL) or shown.lstrip().startswith(header.strip())


def _where(number: int, then: str, now: str) -> str:
    same = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
    old, new = then[same : same + QUOTED], now[same : same + QUOTED]
    return f"before turn {number}, behind {then[max(same - QUOTED, 0) : same]!r}, the template had {old!r}, now {new!r}"
