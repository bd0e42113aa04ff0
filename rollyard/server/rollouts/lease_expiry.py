"""The end of stale leases: the work of a silent node agent goes back to the queue."""

from __future__ import annotations

import asyncio
import logging

from rollyard.core.errors import Unavailable
from rollyard.server.rollouts.service import RolloutService
from rollyard.wire.node import LeaseRef

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5


class LeaseExpiry:
    """Task that takes back every lease whose time has passed."""

    def __init__(self, rollouts: RolloutService) -> None:
        self._rollouts = rollouts

    async def run(self) -> None:
        """Check twice a second, for ever."""
        while True:
            await self.take_back_expired()
            await asyncio.sleep(CHECK_SECONDS)

    async def take_back_expired(self) -> None:
        """Take back the leases that have expired by now. If the store fails, the rest is taken back at a later check."""
        for (namespace, id), lease in self._rollouts.leases.expired():
            try:
                await self._rollouts.lose(LeaseRef(namespace=namespace, id=id, fence=lease.fence), "Expired")
            except Unavailable as error:
                log.error("the lease of %s expired, but this cannot be stored: %s", id, error)
                return
