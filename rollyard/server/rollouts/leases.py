"""Expiry times of leases, in memory. After a server's restart every lease in the store gets one full period.

If the leases of a holder (the process of a node agent) are not renewed, the holder stops the rollouts by its own clock,
before the leases expire here. Fences make late messages of such a holder void. So the expiry times are not needed for
correctness: they only decide when the rollouts of a silent holder return to the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rollyard.core.clock import Clock
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutKey, Stage
from rollyard.server.rollouts.step import is_suspect
from rollyard.server.routing.session_index import SessionIndex
from rollyard.store.base import RolloutRecord, allocation_uid
from rollyard.wire.node import LeaseKey, LeaseRef

PARKED_REPORT_SECONDS = 10.0
"""A lease counts as parked (without an endpoint) for this many seconds after a request that found no endpoint. The
holder of a parked lease asks every 2 s."""


@dataclass(slots=True)
class LiveLease:
    fence: int
    holder: str
    pool: PoolKey
    expires: float
    stage: Stage
    """Latest known stage: the stage that the holder last reported, or the stage of the record in the store if the
    record has changed since then. A report of RUN does not change the record in the store. The record gets the stage
    RUN with the rollout's next event."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Role -> endpoint id."""
    exclusive: bool = False
    """True: the holder gets no other lease."""
    hinted_at: float = float("-inf")
    """Monotonic seconds at which the holder last got a hint to ask for another endpoint."""
    was_held: bool = False
    """True once the holder has named the lease."""
    run_begun: float | None = None
    """Unix seconds at which the holder reported RUN."""
    parked_since: float = 0.0
    """Unix seconds at which the holder's present wait for an endpoint began."""
    parked_at: float = float("-inf")
    """Monotonic seconds of the last request that found no endpoint."""

    @property
    def endpoint_ids(self) -> frozenset[str]:
        """Endpoints on which this lease is a live session. A rollout in EVAL samples nothing."""
        return frozenset() if self.stage is Stage.EVAL else frozenset(self.endpoints.values())


class Leases:
    """Live leases by rollout, one for each record with a holder. A live lease counts as a session on its endpoints,
    except in the stage EVAL."""

    def __init__(self, clock: Clock, seconds: float, sessions: SessionIndex) -> None:
        self._clock = clock
        self._sessions = sessions
        self.seconds = seconds
        self._live: dict[RolloutKey, LiveLease] = {}
        self._held: Counter[str] = Counter()
        self._exclusive: Counter[str] = Counter()
        """Holder -> number of exclusive leases."""

    def add(self, record: RolloutRecord) -> None:
        assert record.holder is not None
        expires = self._clock.monotonic() + self.seconds
        key = record.key
        if key in self._live:
            self.discard(key)
        alone = is_suspect(record)
        lease = LiveLease(record.fence, record.holder, record.pool_key, expires, record.stage, record.endpoints, alone)
        self._live[key] = lease
        self._held[lease.holder] += 1
        self._exclusive[lease.holder] += alone
        self._sessions.pin(key, lease.endpoint_ids)

    def discard(self, key: RolloutKey) -> None:
        lease = self._live.pop(key, None)
        if lease is not None:
            self._sessions.pin(key, frozenset())
            self._held[lease.holder] -= 1
            self._exclusive[lease.holder] -= lease.exclusive
            if not self._held[lease.holder]:
                del self._held[lease.holder], self._exclusive[lease.holder]

    def held_by(self, holder: str) -> int:
        """Return the number of leases of one node agent."""
        return self._held[holder]

    def has_exclusive(self, holder: str) -> bool:
        """Whether the node agent has an exclusive lease."""
        return self._exclusive[holder] > 0

    def lease_changed(self, record: RolloutRecord) -> None:
        """Copy the stage and the endpoints of a changed record into its lease, if the fence is the same."""
        lease = self._live.get(record.key)
        if lease is not None and lease.fence == record.fence:
            lease.stage, lease.endpoints = record.stage, record.endpoints
            self._sessions.pin(record.key, lease.endpoint_ids)

    def park(self, ref: LeaseRef) -> None:
        """Record that the holder asked for an endpoint at which to continue, and that there is none."""
        lease, now = self._live.get(ref.rollout), self._clock.monotonic()
        if lease is not None and lease.fence == ref.fence:
            if now - lease.parked_at >= PARKED_REPORT_SECONDS:
                lease.parked_since = self._clock.time()
            lease.parked_at = now

    def unpark(self, ref: LeaseRef) -> None:
        """Record that the lease has an endpoint again."""
        lease = self._live.get(ref.rollout)
        if lease is not None and lease.fence == ref.fence:
            lease.parked_at = float("-inf")

    def parked_since(self, key: RolloutKey, fence: int) -> float | None:
        """Return the start of the lease's present wait for an endpoint (Unix seconds). None if the lease is not live or
        has an endpoint, or if the last request that found none is PARKED_REPORT_SECONDS old."""
        lease = self._live.get(key)
        if lease is None or lease.fence != fence or self._clock.monotonic() - lease.parked_at >= PARKED_REPORT_SECONDS:
            return None
        return lease.parked_since

    def run_begun(self, key: RolloutKey, fence: int) -> float | None:
        """Return when the holder of this lease reported RUN (Unix seconds). None before that, or if the lease is not
        live. Any thread may call this method."""
        lease = self._live.get(key)
        return lease.run_begun if lease is not None and lease.fence == fence else None

    def renew(self, holder: str, held: Iterable[LeaseRef]) -> list[LeaseRef]:
        """Renew the named leases that still belong to the holder, with their reported stages. Return the other named
        leases, which are void."""
        expires, lost = self._clock.monotonic() + self.seconds, []
        for ref in held:
            lease = self._live.get(ref.rollout)
            if lease is None or lease.fence != ref.fence or lease.holder != holder:
                lost.append(ref)
                continue
            lease.expires, lease.was_held = expires, True
            if lease.stage is not ref.stage:
                lease.stage = ref.stage
                if ref.stage is Stage.RUN:
                    lease.run_begun = self._clock.time()
                self._sessions.pin(ref.rollout, lease.endpoint_ids)
        return lost

    def get(self, key: RolloutKey) -> LiveLease | None:
        return self._live.get(key)

    def missing(self, holder: str, held: Iterable[LeaseRef]) -> list[tuple[RolloutKey, LiveLease]]:
        """Leases of a holder that are not in `held`, the list that the holder sends when it connects."""
        named = {ref.key for ref in held}
        return [(k, v) for k, v in self._live.items() if v.holder == holder and LeaseKey(*k, v.fence) not in named]

    def expired(self) -> list[tuple[RolloutKey, LiveLease]]:
        now = self._clock.monotonic()
        return [(k, v) for k, v in self._live.items() if v.expires <= now]

    def in_flight(self, namespace: str, pool: str | None) -> dict[Stage, int]:
        """Number of leases of a pool, or of a namespace, by stage as last reported."""
        counts = dict.fromkeys(Stage, 0)
        for lease in self._live.values():
            if lease.pool.namespace == namespace and pool in (None, lease.pool.name):
                counts[lease.stage] += 1
        return counts

    def by_allocation(self) -> Counter[str]:
        """Allocation uid -> number of leases."""
        return Counter(allocation_uid(lease.holder) for lease in self._live.values())

    def of_allocation(self, uid: str) -> list[tuple[RolloutKey, LiveLease]]:
        return [(k, v) for k, v in self._live.items() if allocation_uid(v.holder) == uid]
