"""When each lease runs out. In memory: after a server's restart every lease in the store gets one full period to be renewed.

The holder stops by itself earlier, by its own clock, and the fence makes a late word void; this table only decides when a
silent holder's work is given to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rollyard.clock import Clock
from rollyard.kinds.rollout import Stage
from rollyard.kinds.wire import LeaseRef
from rollyard.store.base import RolloutRecord

Key = tuple[str, str]
"""(namespace, rollout id)."""


@dataclass(slots=True)
class LiveLease:
    fence: int
    holder: str
    pool: Key
    expires: float
    stage: Stage
    """As the holder last said; the durable stage moves only when RUN is stored."""


class Leases:
    """Live leases by rollout; mirrors which records have a holder."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self._live: dict[Key, LiveLease] = {}

    def add(self, record: RolloutRecord) -> None:
        assert record.holder is not None
        expires = self._clock.monotonic() + self.seconds
        key = (record.namespace, record.pool)
        self._live[record.namespace, record.id] = LiveLease(record.fence, record.holder, key, expires, record.stage)

    def discard(self, namespace: str, id: str) -> None:
        self._live.pop((namespace, id), None)

    def moved(self, record: RolloutRecord) -> None:
        """The durable stage moved under the same lease."""
        lease = self._live.get((record.namespace, record.id))
        if lease is not None and lease.fence == record.fence:
            lease.stage = record.stage

    def renew(self, holder: str, held: Iterable[LeaseRef]) -> list[LeaseRef]:
        """Renew what is named and still the holder's; answers what is not."""
        expires, lost = self._clock.monotonic() + self.seconds, []
        for ref in held:
            lease = self._live.get((ref.namespace, ref.id))
            if lease is None or lease.fence != ref.fence or lease.holder != holder:
                lost.append(ref)
                continue
            lease.expires, lease.stage = expires, ref.stage
        return lost

    def get(self, namespace: str, id: str) -> LiveLease | None:
        return self._live.get((namespace, id))

    def missing(self, holder: str, held: Iterable[LeaseRef]) -> list[tuple[Key, LiveLease]]:
        """Leases of this holder that it does not name: the grant never arrived."""
        named = {(r.namespace, r.id, r.fence) for r in held}
        return [(k, v) for k, v in self._live.items() if v.holder == holder and (*k, v.fence) not in named]

    def expired(self) -> list[tuple[Key, LiveLease]]:
        now = self._clock.monotonic()
        return [(k, v) for k, v in self._live.items() if v.expires <= now]

    def in_flight(self, namespace: str, pool: str | None) -> dict[Stage, int]:
        """Leases of a pool, or of a whole namespace, by stage, as their holders last said."""
        counts = dict.fromkeys(Stage, 0)
        for lease in self._live.values():
            if lease.pool[0] == namespace and pool in (None, lease.pool[1]):
                counts[lease.stage] += 1
        return counts

    def by_allocation(self) -> Counter[str]:
        """How many each allocation holds, by its uid."""
        return Counter(lease.holder.partition("/")[0] for lease in self._live.values())

    def of_allocation(self, uid: str) -> list[tuple[Key, LiveLease]]:
        return [(k, v) for k, v in self._live.items() if v.holder.partition("/")[0] == uid]
