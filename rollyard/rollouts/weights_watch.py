"""Looks at what asks something of the weights whenever they move, and now and then besides: for what came back meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from rollyard.errors import RollyardError
from rollyard.kinds.pools import RolloutPool
from rollyard.rollouts.dispatch import Placement, served_in
from rollyard.rollouts.freshness import judge
from rollyard.rollouts.service import Rollouts

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
PASSES = 3
"""What begins anew in one may end in the next."""


class WeightsWatch:
    """Decides from the store and from what endpoints say now, so that a restart forgets nothing."""

    def __init__(
        self, rollouts: Rollouts, placement: Placement, pools: Callable[[], Awaitable[list[RolloutPool]]]
    ) -> None:
        self._rollouts = rollouts
        self._placement = placement
        self._pools = pools
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            self._wake.clear()
            for pool in await self._pools():
                try:
                    await self.look(pool)
                except RollyardError as error:
                    log.warning("the weights of what runs in pool %s were not looked at: %s", pool.metadata.name, error)
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the wake.
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()

    async def look(self, pool: RolloutPool) -> int:
        """Answers how many were begun anew or ended."""
        meta, changed = pool.metadata, 0
        for _ in range(PASSES):
            served = served_in(self._placement, pool)
            found = await self._rollouts.judge_weights((meta.namespace, meta.name), partial(judge, served=served))
            changed += found
            if not found:
                break
        return changed
