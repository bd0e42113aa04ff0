"""Checks rollouts that depend on weights versions: after each change of the weights, and every `POLL_SECONDS`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from rollyard.core.aio import Waker
from rollyard.core.clock import Clock
from rollyard.core.errors import RollyardError
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.server.rollouts.dispatch import served_versions
from rollyard.server.rollouts.service import RolloutService
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.staleness import ServedVersions, check

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
GRACE_SECONDS = 30.0
"""A version counts as gone when no endpoint has served it for this many seconds. The time is long because the end of a
rollout cannot be undone: a silent or ejected engine may soon be healthy, and engines register again after a server's
start."""
MAX_PASSES = 3
"""Greatest number of passes in one check. A rollout that one pass requeues may be ended by the next pass."""


@dataclass(slots=True)
class _PoolVersions:
    """Weights versions seen in one pool. Times are in monotonic seconds."""

    since: float
    seen: dict[str, float] = field(default_factory=dict)
    """Version -> time at which it was last served."""


class StalenessWatch:
    """Checks rollouts on the basis of the store and the endpoints' reports.

    A restart of the server loses only the times at which versions were last served.
    """

    def __init__(
        self,
        rollouts: RolloutService,
        endpoints: EndpointRegistry,
        pools: Callable[[], Awaitable[list[RolloutPool]]],
        clock: Clock,
    ) -> None:
        self._rollouts = rollouts
        self._endpoints = endpoints
        self._pools = pools
        self._clock = clock
        self._watched: dict[PoolKey, _PoolVersions] = {}
        self.waker = Waker()

    async def run(self) -> None:
        """Check for ever."""
        while True:
            pools = await self._pools()
            there = {pool.pool_key for pool in pools}
            self._watched = {key: watched for key, watched in self._watched.items() if key in there}
            for pool in pools:
                try:
                    await self.check_pool(pool)
                except RollyardError as error:
                    log.warning(
                        "the weights of running rollouts in pool %s were not checked: %s", pool.metadata.name, error
                    )
            await self.waker.pause(POLL_SECONDS)

    async def check_pool(self, pool: RolloutPool) -> int:
        """Check one pool; return how many rollouts were requeued or ended."""
        key, changed = pool.pool_key, 0
        for _ in range(MAX_PASSES):
            found = await self._rollouts.enforce_staleness(key, partial(check, served=self._served(pool)))
            changed += found
            if not found:
                break
        return changed

    def _served(self, pool: RolloutPool) -> ServedVersions:
        served, now = served_versions(self._endpoints, pool), self._clock.monotonic()
        watched = self._watched.setdefault(pool.pool_key, _PoolVersions(now))
        watched.seen.update(dict.fromkeys(served.ready, now))
        watched.seen = {version: at for version, at in watched.seen.items() if now - at < GRACE_SECONDS}
        known = now - watched.since >= GRACE_SECONDS
        return replace(served, recently_served=frozenset(watched.seen) if known else None)
