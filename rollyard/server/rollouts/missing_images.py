"""Stores which images a pool's node agents cannot have now, and ends the rollouts that waited too long for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rollyard.core.aio import Signal
from rollyard.core.clock import Clock
from rollyard.core.errors import NotFound, RollyardError
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent, ConnectedNodeAgents
from rollyard.server.rollouts.lease_reports import held_record
from rollyard.server.rollouts.missing_image import FIRST_SECONDS, failed, freed, pulling
from rollyard.server.rollouts.record_changes import RecordChanges
from rollyard.server.rollouts.service import RolloutService
from rollyard.server.rollouts.step import ImageGivenUp, ImageMissing
from rollyard.store.base import MissingImage
from rollyard.store.rollout_transaction import Transaction
from rollyard.wire.node import ImageChanges, ImageFault, LeaseRef

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
FORGET_SECONDS = 3600.0
"""An image whose delay ended this long ago is forgotten: no rollout has needed the image since."""
MOST_READY = 10_000
"""Greatest number of images that count as complete on one node."""
MOST_MISSING = 1_000
"""Greatest number of missing images of a pool. Faults of further images are not stored: each of their rollouts waits a
little."""
MAX_ENDED = 500
"""Greatest number of rollouts of one image that end in one transaction."""


class MissingImages:
    """All missing images. Node agents report faults; the rollouts of a missing image stay in the queue."""

    def __init__(
        self,
        rollouts: RolloutService,
        clock: Clock,
        node_agents: ConnectedNodeAgents,
        pool: Callable[[PoolKey], Awaitable[RolloutPool]],
    ) -> None:
        self._rollouts = rollouts
        self._node_agents = node_agents
        self._clock = clock
        self._pool = pool
        self.changed = Signal[PoolKey]()
        """Signal: images of this pool failed, or are ready after a failure."""

    async def hand_back(self, ref: LeaseRef, agent: ConnectedNodeAgent, fault: ImageFault) -> None:
        """Take back a lease whose node agent does not have the image. If another node agent of the pool has it, or if too many
        images are missing, only this rollout waits, and the image does not count as missing. Raises Fenced, NotFound."""
        pool, holder_uid = agent.pool, agent.identity.uid
        others = (other for other in self._node_agents.of_pool(pool) if other is not agent and not other.draining)
        elsewhere = any(fault.image in other.ready_images for other in others)
        sandbox, now = await self._sandbox(pool), self._clock.time()

        def change(tx: Transaction, changes: RecordChanges) -> None:
            record = held_record(tx, ref, holder_uid)
            known = {one.image: one for one in tx.missing_images(pool)}
            missing = _after(known.get(fault.image), pool, fault, now)
            stored = not elsewhere and (fault.image in known or len(known) < MOST_MISSING)
            if stored:
                tx.put_missing_image(missing)
            image = "" if fault.default else fault.image
            named = replace(record, eval_image=image) if fault.evaluator else replace(record, image=image)
            covered = (
                stored and fault.image in named.images(sandbox.default_image or "") and record.stage is not Stage.EVAL
            )
            alone_until = now + FIRST_SECONDS if fault.pulling else missing.until  # nothing ends this wait earlier
            ends_at = max(record.created_at, missing.since) + sandbox.images.give_up_after_seconds
            event = ImageMissing(
                at=now,
                fence=ref.fence,
                message=fault.message,
                image=image,
                evaluator=fault.evaluator,
                not_before=now if covered else alone_until,
                ends_at=float("inf") if fault.pulling else ends_at,
            )
            changes.step(tx, record, event)

        await self._rollouts.transact(change)
        if not fault.pulling:
            self.changed.emit(pool)

    async def report(self, agent: ConnectedNodeAgent, changes: ImageChanges) -> None:
        """Store what a node agent found out about images. Their rollouts can be granted as soon as an image is ready."""
        ready = changes.ready[:MOST_READY]
        agent.ready_images -= set(changes.gone)
        agent.ready_images |= set(ready[: max(0, MOST_READY - len(agent.ready_images))])
        if ready or changes.failed:
            await self._report(agent.pool, ready, changes.failed[:MOST_MISSING])

    async def _report(self, pool: PoolKey, ready: Sequence[str], faults: Sequence[ImageFault]) -> None:
        now = self._clock.time()

        def change(tx: Transaction, changes: RecordChanges) -> bool:
            known = {one.image: one for one in tx.missing_images(pool)}
            for fault in faults:
                if fault.image in known or len(known) < MOST_MISSING:
                    known[fault.image] = _after(known.get(fault.image), pool, fault, now)
                    tx.put_missing_image(known[fault.image])
            released = any([tx.delete_missing_image(pool, image) for image in ready])
            for missing in tx.missing_images(pool) if ready else ():
                if (now_due := freed(missing, ready, now)) is not None:
                    tx.put_missing_image(now_due)
                    released = True
            return released

        released = await self._rollouts.transact(change)
        if released or faults:
            self.changed.emit(pool)
        if released:
            self._rollouts.rollout_queued.emit(pool, now)

    async def run(self) -> None:
        """End the rollouts that waited too long, for ever."""
        while True:
            try:
                await self.give_up()
            except RollyardError as error:
                log.warning("missing images were not checked this time: %s", error)
            await asyncio.sleep(CHECK_SECONDS)

    async def give_up(self) -> int:
        """End the queued rollouts that waited too long for their images. Return their number."""
        ended = 0
        for pool in {missing.pool for missing in await self._rollouts.transact(lambda tx, _: tx.missing_images())}:
            ended += await self._give_up(pool)
        return ended

    async def _give_up(self, pool: PoolKey) -> int:
        try:
            sandbox = await self._sandbox(pool)
        except NotFound:
            sandbox = None  # the pool is deleted, and its queued rollouts are cancelled
        now = self._clock.time()

        def change(tx: Transaction, changes: RecordChanges) -> int:
            ended = 0
            for missing in tx.missing_images(pool):
                if sandbox is None or missing.until < now - FORGET_SECONDS:
                    tx.delete_missing_image(pool, missing.image)
                elif missing.since and now - missing.since >= sandbox.images.give_up_after_seconds:
                    before = now - sandbox.images.give_up_after_seconds
                    for image in [missing.image, ""] if missing.image == sandbox.default_image else [missing.image]:
                        for record in tx.queued_of_image(pool, image, before, MAX_ENDED):
                            changes.step(tx, record, ImageGivenUp(now, missing.message))
                            ended += 1
            return ended

        return await self._rollouts.transact(change)

    async def _sandbox(self, pool: PoolKey) -> SandboxTemplate:
        return (await self._pool(pool)).spec.sandbox


def _after(missing: MissingImage | None, pool: PoolKey, fault: ImageFault, now: float) -> MissingImage:
    return pulling(missing, pool, fault.image, now) if fault.pulling else failed(missing, pool, fault, now)
