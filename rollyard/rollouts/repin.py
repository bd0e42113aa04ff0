"""Tells node agents which live sessions had better go on at another endpoint: those of one that drains, or has too many.

A hint alone. The rollout asks between two turns, the server chooses then and writes it down; so nothing is counted before
it is true, and a node agent that does not know the word stays where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from rollyard.clock import Clock
from rollyard.kinds.wire import LeaseRef, Repin
from rollyard.rollouts.agents import Agents
from rollyard.rollouts.leases import Key, Leases, LiveLease
from rollyard.telemetry import REPINS

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
SETTLED_SECONDS = 60.0
"""Between two hints to one lease: a session that moved has paid for it, and one that drains has been told."""


class Skew(Protocol):
    """Who knows what is too much; `inference.Endpoints` does."""

    def to_move(self) -> dict[str, int]: ...


class Repinner:
    """Looks from time to time, and at once when an endpoint has moved."""

    def __init__(self, clock: Clock, agents: Agents, leases: Leases, skew: Skew) -> None:
        self._clock = clock
        self._agents = agents
        self._leases = leases
        self._skew = skew
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the wake.
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            self.look()
            await asyncio.sleep(0.1)  # endpoints that move together are looked at together

    def look(self) -> None:
        """One round of hints."""
        for endpoint, excess in self._skew.to_move().items():
            told = 0
            for key, lease in self._leases.on(endpoint):
                if told >= excess:
                    break
                told += self._tell(endpoint, key, lease)
            if told:
                log.info("%d of the sessions on endpoint %s are told to look for another", told, endpoint)

    def _tell(self, endpoint: str, key: Key, lease: LiveLease) -> bool:
        now, agent = self._clock.monotonic(), self._agents.get(lease.holder)
        if agent is None or now - lease.told_at < SETTLED_SECONDS:
            return False
        lease.told_at = now
        ref = LeaseRef(namespace=key[0], id=key[1], fence=lease.fence, stage=lease.stage)
        for role in (role for role, id in lease.endpoints.items() if id == endpoint):
            agent.send(Repin(lease=ref, role=role))
        REPINS.inc()
        return True
