"""Expiry of leases: the rollouts of a silent node agent go back to the queue, or end after too many losses."""

from __future__ import annotations

import asyncio
import logging

from rollyard.core.errors import Unavailable
from rollyard.server.rollouts.service import RolloutService

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5


class LeaseExpiry:
    """Background task that takes back expired leases."""

    def __init__(self, rollouts: RolloutService) -> None:
        self._rollouts = rollouts

    async def run(self) -> None:
        """Check twice a second, for ever."""
        while True:
            await self.take_back_expired()
            await asyncio.sleep(CHECK_SECONDS)

    async def take_back_expired(self) -> None:
        """Take back all expired leases. If the store fails, a later check takes back the remaining leases."""
        expired = self._rollouts.leases.expired()
        try:
            await self._rollouts.lose_together(expired, "Expired")
        except Unavailable as error:
            log.error("%d leases expired, but this cannot be stored: %s", len(expired), error)
