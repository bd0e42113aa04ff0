"""Figures of endpoints that move all the time, as a pool's status has them: seldom enough that they do not rewrite it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollyard.core.clock import Clock
from rollyard.kinds.endpoint_metrics import Figures
from rollyard.server.routing.admission import Admission
from rollyard.server.routing.endpoint_metrics import figures, known, total
from rollyard.server.routing.endpoint_state import EndpointState, PoolKey

COARSE_SECONDS = 30.0
"""Figures in a status are at most so old."""


@dataclass(frozen=True, slots=True)
class Coarse:
    taken_at: float
    """Monotonic seconds."""
    endpoints: Mapping[str, Figures]
    """By id, of those whose load is known."""
    total: Figures
    limits: Mapping[str, Admission]
    """By id, of those that have a limit; it moves with each heartbeat, and its words hold figures."""


class CoarseFigures:
    """The last copy for each pool.

    A new one is taken when it is old, and when an endpoint began or ceased to say its load or to have a limit of sessions.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[PoolKey, Coarse] = {}

    def of(self, pool: PoolKey, states: Sequence[EndpointState]) -> Coarse:
        now, heard = self._clock.monotonic(), [state for state in states if known(state)]
        last, limits = (
            self._last.get(pool),
            {s.endpoint.id: s.admission for s in states if s.admission.limit is not None},
        )
        same = last is not None and last.endpoints.keys() == {s.endpoint.id for s in heard}
        same = same and last is not None and last.limits.keys() == limits.keys()
        if last is not None and same and now - last.taken_at < COARSE_SECONDS:
            return last
        fresh = Coarse(now, {state.endpoint.id: figures(state) for state in heard}, total(heard), limits)
        if heard:
            self._last[pool] = fresh
        else:
            self._last.pop(pool, None)
        return fresh
