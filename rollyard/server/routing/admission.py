"""Admission of one more session to an endpoint, so that rollouts wait in our queue and do not evict each other's cache.

Pure. A session that waits for a tool uses no blocks that the engine counts, but it will need them again. So the measure
is the cache that all sessions would fill at once, projected from those that run now. The limit falls above one
threshold and grows below another, so it does not oscillate. An idle endpoint always takes one session.
"""

from __future__ import annotations

from dataclasses import dataclass

FULL, EASY = 0.92, 0.75
"""Filled share of the cache above which no session is admitted, and below which the limit grows again."""
CROWDED, ROOMY = 1.5, 1.1
"""The same thresholds for the projected use of all sessions. Above 1, because some sessions end before their next call."""
SAMPLE = 0.25
"""Share of the sessions that must be running, so that their use can be projected to all."""
LINE, SHORT_LINE = 1.0, 0.25
"""The two thresholds again, for requests that wait in the engine divided by requests that run."""
GROWTH, SHRINKAGE = 0.1, 0.05
"""Share by which the limit grows at a heartbeat when there is room, and by which it falls when the cache overflows."""


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """Last reported load of one endpoint, and its live sessions by the leases."""

    sessions: int
    running: int
    waiting: int | None = None
    kv_usage: float | None = None
    """Filled share of the key-value cache, 0 to 1; None if the engine does not report it. For `waiting` None means the same."""


@dataclass(frozen=True, slots=True)
class Admission:
    limit: int | None = None
    """Greatest number of live sessions until the next heartbeat; None for no limit."""
    why: str = ""
    """Reason for people; empty if there is no limit."""

    def admits(self, sessions: int) -> bool:
        """Whether one more session is admitted. An idle endpoint always takes one, so that nothing waits for ever."""
        return self.limit is None or sessions < self.limit or sessions == 0


UNLIMITED = Admission()


def admission(load: EndpointLoad, before: Admission) -> Admission:
    """Return the admission from this heartbeat to the next."""
    pressure = _why_overloaded(load)
    if pressure is not None:
        overflows = (load.waiting or 0) > 0 and (load.kv_usage or 0.0) >= FULL
        kept = load.sessions - round(load.sessions * SHRINKAGE) if overflows else load.sessions
        limit = kept if before.limit is None else min(before.limit, kept)
        return Admission(max(1, limit), pressure)
    if before.limit is None:
        return UNLIMITED
    if not _is_relaxed(load):
        return before
    limit = max(before.limit, load.sessions) + max(1, round(before.limit * GROWTH))
    # Above three times its sessions the limit has no effect any more.
    return UNLIMITED if limit > 3 * max(1, load.sessions) else Admission(limit, before.why)


def _why_overloaded(load: EndpointLoad) -> str | None:
    """Reason not to admit one more session; None if there is none."""
    usage, crowd = load.kv_usage, _projected_cache_use(load)
    if usage is not None and usage >= FULL:
        return f"its cache is {usage:.0%} full"
    if crowd is not None and crowd >= CROWDED:
        return f"its {load.sessions} sessions together need {crowd:.1f} times its cache"
    if load.waiting is not None and load.waiting > LINE * max(1, load.running):
        return f"{load.waiting} of its requests wait and {load.running} run"
    return None


def _is_relaxed(load: EndpointLoad) -> bool:
    crowd = _projected_cache_use(load)
    return (
        (load.kv_usage is None or load.kv_usage <= EASY)
        and (crowd is None or crowd <= ROOMY)
        and (load.waiting or 0) <= SHORT_LINE * max(1, load.running)
    )


def _projected_cache_use(load: EndpointLoad) -> float | None:
    """Multiple of the cache that all sessions at once would fill; None if too few run for a projection."""
    if load.kv_usage is None or not load.running or load.running < SAMPLE * load.sessions:
        return None
    return load.kv_usage * max(1.0, load.sessions / load.running)
