"""A pool whose rollouts a test plays: it leases what is queued and reports results, by the server's own services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import zstandard

from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.server.rollouts.step import Granted, step
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.store.base import RolloutRecord
from rollyard.store.rollout_transaction import Transaction
from rollyard.trajectory import Outcome, Segment, Turn
from rollyard.trajectory.columns import encode
from rollyard.wire.node import LeaseRef, ResultHeader
from tests.support.reports import finish


@dataclass
class Played:
    """Result that a played rollout ends with."""

    reward: float | None = 1.0
    status: Status = Status.COMPLETED
    tokens: int = 10
    seconds: float = 1.0
    turns: Sequence[Turn] = ()


Play = Callable[[RolloutRecord], Played]


class PlayedPool:
    """One node agent of the pool, without a process."""

    def __init__(self, parts: Parts, pool: str = "swe", namespace: str = "default") -> None:
        self._parts = parts
        self._key = PoolKey(namespace, pool)

    async def lease(self, limit: int = 1) -> list[RolloutRecord]:
        """Lease what is first in the queue."""
        parts = self._parts

        def grant(tx: Transaction) -> list[RolloutRecord]:
            queued = tx.queued([self._key], [Stage.INIT], float("inf"), limit)
            granted = Granted(parts.clock.time(), "u/i", "node", {"policy": "e"}, "v1")
            ranks = tx.queue_ranks(self._key)
            served = max([ranks.served, *(record.queue_rank for record in queued)])
            tx.put_queue_ranks(self._key, replace(ranks, served=served))
            return [tx.put(step(record, granted)[0]) for record in queued]

        return await parts.store.rollouts.transact(grant)

    async def finish(self, record: RolloutRecord, played: Played) -> None:
        """Report a result, as the node agent would."""
        segment = Segment(
            token_ids=[1, 2], loss_mask=[0, 1], logprobs=[None, -0.5], weights_version=[None, "v1"], prompt_length=1
        )
        error = (
            None if played.status.scored else RolloutError(stage=Stage.RUN, reason="Test", message="as the test has it")
        )
        reward = played.reward if played.status.scored else None
        outcome = Outcome(
            status=played.status, reward=reward, segments=[segment], turns=list(played.turns), error=error
        )  # type: ignore[arg-type]
        header = ResultHeader(
            lease=LeaseRef(namespace=record.namespace, id=record.id, fence=record.fence),
            status=played.status,
            reward=reward,
            error=error,
            turns=1,
            tokens=played.tokens,
            prompt_tokens=3,
            sampled=1,
            weights_versions=["v1"],
            timings={"run": played.seconds},
        )
        blob = zstandard.compress(encode([outcome]))
        await finish(self._parts.rollouts, header, "u", blob)

    async def play(self, play: Play, most: int = 1_000_000) -> int:
        """Run what is queued, one after another, until nothing is queued; return the number of rollouts."""
        played = 0
        while played < most and (leased := await self.lease()):
            for record in leased:
                await self.finish(record, play(record))
                played += 1
        return played
