"""How many warm sandboxes a node agent needs, from the claims of the last seconds and the claims that it knows of. Pure.

Sandboxes that are alike in everything (image, limits, network, variables, tools) have one shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

RECENT_SECONDS = 45.0
"""Seconds for which a claim counts. A warm sandbox that nobody claims ends after this time."""
BURST_SECONDS = 1.0
"""Claims within this time count as made at once."""
_OFTEN = 2
"""Number of claims that make a shape one that is used often: an image that is used once gets no sandbox in advance."""
Shape = TypeVar("Shape")


@dataclass(frozen=True, slots=True)
class Need:
    """The warm sandboxes of one shape."""

    wanted: int
    have: int
    """Number of those that are ready or starting."""
    claimed_at: float
    """Time of the last claim."""
    expected_since: float | None = None
    """Time since which the next claim is expected; None if none is."""

    @property
    def rank(self) -> tuple[bool, float]:
        """Order in which shapes get sandboxes. Expected claims come first, the one that was announced first before the
        others, because its rollout probably reaches EVAL first. Then comes the shape that was claimed last."""
        if self.expected_since is not None:
            return False, self.expected_since
        return True, -self.claimed_at


def wanted(claims: Sequence[float], expected: int, now: float) -> int:
    """Return how many warm sandboxes one shape needs: as many as were claimed at once lately, or as are expected.

    `claims`: times of the claims that were not expected, in order. `expected`: number of claims that will come.
    """
    recent = [at for at in claims if now - at < RECENT_SECONDS]
    return max(expected, _greatest_burst(recent) if len(recent) >= _OFTEN else 0)


def to_start(needs: Mapping[Shape, Need], room: int) -> list[Shape]:
    """Return the shapes of at most `room` new sandboxes. A shape with fewer sandboxes goes first, then the shape with the
    first rank."""
    have = {shape: need.have for shape, need in needs.items()}
    chosen: list[Shape] = []
    while len(chosen) < room:
        lacking = [shape for shape, need in needs.items() if have[shape] < need.wanted]
        if not lacking:
            break
        first = min(lacking, key=lambda shape: (have[shape], needs[shape].rank))
        have[first] += 1
        chosen.append(first)
    return chosen


def to_end(needs: Mapping[Shape, Need], too_many: int) -> list[Shape]:
    """Return the shapes of the sandboxes to end: those that nobody needs any more, and, up to `too_many` in all, those of
    the shapes with the last ranks."""
    chosen = [shape for shape, need in needs.items() for _ in range(need.have - need.wanted)]
    last_first = sorted(needs, key=lambda shape: needs[shape].rank, reverse=True)
    kept = [shape for shape in last_first for _ in range(min(needs[shape].have, needs[shape].wanted))]
    return chosen + kept[: max(0, too_many - len(chosen))]


def _greatest_burst(times: Sequence[float]) -> int:
    greatest, first = 0, 0
    for number, at in enumerate(times):
        while at - times[first] >= BURST_SECONDS:
            first += 1
        greatest = max(greatest, number - first + 1)
    return greatest
