"""Recent rates of model servers, from the totals in their heartbeats.

Times come from the sender's clock, so that a late heartbeat does not change a rate. A restarted engine has a new history,
because its totals start at zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from rollyard.wire.engine import EngineLoad

WINDOW_SECONDS = 15.0
LEAST_SECONDS = 1.0
"""Shortest time between two reports that gives a rate."""

History = tuple[EngineLoad, ...]
"""Reports of an engine since its last start, the oldest first. Reports that the window does not need are dropped."""


@dataclass(frozen=True, slots=True)
class EndpointRates:
    """Rates per second over about the last 15 seconds; None for an unknown rate."""

    generated_tokens: float | None = None
    prompt_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    first_tokens: float | None = None
    first_token_seconds: float | None = None

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of the looked-up prompt tokens that were in the cache; None if no token was looked up."""
        return _share(self.prefix_hits, self.prefix_queries)

    @property
    def mean_first_token_seconds(self) -> float | None:
        """Mean time from a request's arrival to its first token; None if there are no first tokens."""
        return _share(self.first_token_seconds, self.first_tokens)


UNKNOWN = EndpointRates()
_TOTALS = tuple(f.name for f in fields(EndpointRates))


def append(history: History, load: EngineLoad | None) -> History:
    """Add a report to the history. If `load` is None, the result is empty."""
    if load is None:
        return ()
    if not history or _is_restarted(history[-1], load):
        return (load,)
    if load.at == history[-1].at:
        return history  # the engine sent the same report twice
    if len(history) > 1 and load.at - history[-2].at < LEAST_SECONDS:
        history = history[:-1]
    grown = (*history, load)
    first = max((i for i, older in enumerate(grown) if older.at <= load.at - WINDOW_SECONDS), default=0)
    return grown[first:]


def rates(history: History) -> EndpointRates:
    """Return the rates over the whole history; UNKNOWN if it is too short."""
    if not history or (seconds := history[-1].at - history[0].at) < LEAST_SECONDS:
        return UNKNOWN
    return EndpointRates(
        **{name: _rate(getattr(history[0], name), getattr(history[-1], name), seconds) for name in _TOTALS}
    )


def merge(several: Iterable[EndpointRates]) -> EndpointRates:
    """Return the sums of the known rates. So a share or mean that is computed from these sums is weighted by each
    server's work."""
    listed = list(several)
    return EndpointRates(**{name: _sum(getattr(one, name) for one in listed) for name in _TOTALS})


def _is_restarted(before: EngineLoad, now: EngineLoad) -> bool:
    pairs = ((getattr(before, name), getattr(now, name)) for name in _TOTALS)
    fell = any(old is not None and new is not None and new < old for old, new in pairs)
    return now.life != before.life or now.at < before.at or fell


def _rate(first: float | None, last: float | None, seconds: float) -> float | None:
    return None if first is None or last is None else (last - first) / seconds


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
