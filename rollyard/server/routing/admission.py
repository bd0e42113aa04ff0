"""Admission of one more session to an endpoint: rollouts wait in our queue rather than evict each other from its cache.

Pure. A session that waits for a tool holds no blocks that the engine counts, but it comes back for them. So the measure
is the cache that all its sessions would fill at once, projected from those that run now. The two thresholds lie apart,
so that admission does not swing; an idle endpoint always takes one (`Admission.admits`).
"""

from __future__ import annotations

from dataclasses import dataclass

FULL, EASY = 0.92, 0.75
"""Filled share of the cache above which no session is admitted, and below which more are."""
CROWDED, ROOMY = 1.5, 1.1
"""The same for the projected use of all sessions together: some of them end before they come back."""
SAMPLE = 0.25
"""Share of its sessions that must be running for a projection to the rest."""
LINE, SHORT_LINE = 1.0, 0.25
"""Requests that wait in the engine for each running one: above, and below."""
GROWTH, SHRINKAGE = 0.1, 0.05
"""Growth of the limit from one heartbeat to the next when there is room again, and its fall where the cache overflows."""


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """Last reported load of one endpoint, and its live sessions by the leases."""

    sessions: int
    running: int
    waiting: int | None = None
    kv_usage: float | None = None
    """Filled share of its key-value cache, 0 to 1; None where it does not report it, as for `waiting`."""


@dataclass(frozen=True, slots=True)
class Admission:
    limit: int | None = None
    """Most live sessions until the next heartbeat; None for no limit."""
    why: str = ""
    """Reason for people; empty where there is no limit."""

    def admits(self, sessions: int) -> bool:
        """Whether one more is admitted beside so many; an idle endpoint always takes one, so that nothing waits for ever."""
        return self.limit is None or sessions < self.limit or sessions == 0


UNLIMITED = Admission()


def admission(load: EndpointLoad, before: Admission) -> Admission:
    """Admission from this heartbeat to the next."""
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
    # Three times its sessions, and still relaxed: the limit is not what bounds it any more.
    return UNLIMITED if limit > 3 * max(1, load.sessions) else Admission(limit, before.why)


def _why_overloaded(load: EndpointLoad) -> str | None:
    """Reason not to admit one more; None where there is none."""
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
    """Multiple of the cache that all sessions at once would fill; None where too few run to project."""
    if load.kv_usage is None or not load.running or load.running < SAMPLE * load.sessions:
        return None
    return load.kv_usage * max(1.0, load.sessions / load.running)
