"""Admission of one more session to an endpoint, so that rollouts wait in our queue and do not evict each other's cache.

Pure. There are three measures: the filled share of the cache, the waiting requests, and the cache that all sessions
together would fill. The last one is projected from the running sessions: while a session waits for a tool, the engine
does not count the session's blocks as used, but the session will need them again. The limit falls when one measure
passes its upper threshold. It grows when all measures are below their lower thresholds. So it does not oscillate. An
endpoint without sessions always admits one session.
"""

from __future__ import annotations

from dataclasses import dataclass

FULL, EASY = 0.92, 0.75
"""Thresholds of the filled share of the cache. From FULL on, the limit is at most the present number of sessions. Up to
EASY the limit grows again if the other measures permit it."""
CROWDED, ROOMY = 1.5, 1.1
"""Like FULL and EASY, for the projected use of all sessions. The thresholds are above 1, because some sessions end
before their next model call."""
SAMPLE = 0.25
"""The use of all sessions is projected only if at least this share of them is running."""
LINE, SHORT_LINE = 1.0, 0.25
"""Like FULL and EASY, for the number of waiting requests in the engine divided by the number of running requests."""
GROWTH, SHRINKAGE = 0.1, 0.05
"""GROWTH: share by which the limit grows at a heartbeat if there is room. SHRINKAGE: if the cache is full and requests
wait, the new limit is at most the number of live sessions minus this share of them."""


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """Last reported load of one endpoint, and its number of live sessions."""

    sessions: int
    running: int
    waiting: int | None = None
    kv_usage: float | None = None
    """Filled share of the key-value cache, 0 to 1. None in `kv_usage` or `waiting`: the engine does not report the value."""


@dataclass(frozen=True, slots=True)
class Admission:
    limit: int | None = None
    """Greatest number of live sessions until the next heartbeat; None for no limit."""
    why: str = ""
    """Reason of the limit, as text for people; empty if there is no limit."""

    def admits(self, sessions: int) -> bool:
        """Whether one more session is admitted. An endpoint without sessions always admits one, so that no session waits
        for ever."""
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
    # Far above the number of sessions a limit has hardly any effect, so it is removed.
    return UNLIMITED if limit > 3 * max(1, load.sessions) else Admission(limit, before.why)


def _why_overloaded(load: EndpointLoad) -> str | None:
    """Return why no more session is admitted; None if the endpoint is not overloaded."""
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
    """Return the cache that all sessions together would fill, as a multiple of the endpoint's cache.

    None if the filled share is unknown, or if too few sessions run for a projection.
    """
    if load.kv_usage is None or not load.running or load.running < SAMPLE * load.sessions:
        return None
    return load.kv_usage * max(1.0, load.sessions / load.running)
