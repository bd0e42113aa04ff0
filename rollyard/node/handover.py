"""Work of a rollout that one lease takes over from those before it, and saves for the one after it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import time
from collections.abc import AsyncIterator, Callable

from rollyard.core.errors import AllocationEnds, Invalid, NotFound, ResumeFailed, SnapshotUnusable, StageTimeout
from rollyard.core.failpoints import failpoint
from rollyard.kinds.resumption import Resumption
from rollyard.node.agent_run import CommandRun, LoopRun, ReportReplay
from rollyard.node.allocation_end import LAST_SECONDS, AllocationEnd
from rollyard.node.eval_files import check_image
from rollyard.node.own_loop import OwnLoopRun
from rollyard.node.replay import Replay
from rollyard.node.result_uploads import ResultUploads
from rollyard.node.resume_snapshots import ResumeSnapshots
from rollyard.node.saved_work import SavedWork, why_never
from rollyard.node.snapshot_cost import prefers_snapshot
from rollyard.node.turn_saver import TurnSaver, unpacked
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.guarded_handler import GuardedEnvironment, GuardedHandler
from rollyard.wire.node import CANNOT_MOVE_REASON, WALLTIME_REASON, Lease, LeaseRef

log = logging.getLogger(__name__)

LOOKED_INTO = "somebody looked into the sandbox"
Agent = LoopRun | OwnLoopRun | CommandRun


class Handover:
    """The saved work of one lease in RUN."""

    def __init__(self, uploads: ResultUploads, lease: Lease, ref: Callable[[], LeaseRef], end: AllocationEnd) -> None:
        """`ref`: the lease at its present stage."""
        self._uploads = uploads
        self._lease = lease
        self._ref = ref
        self._end = end
        self.saved = SavedWork()
        """Work of earlier leases that is left to go on with."""
        self.resumptions: list[Resumption] = []
        self._saver: TurnSaver | None = None
        self._snapshots: ResumeSnapshots | None = None
        self._agent: Agent | None = None
        """Agent that can leave this node."""
        self._looked_into = False

    # before RUN

    async def load(self, handler: GuardedHandler, spec: SandboxSpec) -> None:
        """Read what earlier leases have saved. `spec`: RUN's sandbox."""
        if self._lease.saved_turns:
            self.saved = await self._stored(handler, spec)

    async def _stored(self, handler: GuardedHandler, spec: SandboxSpec) -> SavedWork:
        unread = "the saved turns cannot be read: {}"
        try:
            stored, bodies = await self._uploads.stored_turns(self._ref())
        except ValueError as error:
            return SavedWork((), None, (), self._lease.saved_turns, unread.format(error))
        resumptions = tuple(stored.resumptions)
        if never := why_never(self._lease, differs=handler.loop_differs):
            return SavedWork((), None, resumptions, len(bodies), never)
        try:
            turns = await asyncio.to_thread(unpacked, bodies)
        except ValueError as error:
            return SavedWork((), None, resumptions, len(bodies), unread.format(error))
        snapshot, began_so = stored.snapshot, any(one.snapshot for one in resumptions)
        if handler.has_loop or self._lease.agent.command is not None:  # they run from their start
            snapshot = None
        has_network = spec.host_network or bool(spec.allowed_hosts)
        if snapshot is not None and not prefers_snapshot(
            [one.turn for one in turns], snapshot.turn, has_network, began_so
        ):
            snapshot = None
        return SavedWork(turns, snapshot, resumptions, len(turns))

    def give_up(self, error: ResumeFailed) -> None:
        """Go on with less of the saved work, in another sandbox."""
        log.warning("rollout %s cannot go on as it was: %s", self._lease.id, error)
        self.saved = self.saved.without(str(error))

    async def restore_files(self, sandbox: Sandbox, size: int) -> None:
        """Give the sandbox the files of the newest snapshot of an earlier lease, of `size` bytes. Raises ResumeFailed."""
        try:
            async with self._uploads.archives.reserve(size):
                about, archive = await self._uploads.turns_snapshot(self._ref())
                check_image(about.image, sandbox)
                failpoint("before-restore")
                await sandbox.restore(io.BytesIO(archive))
                failpoint("after-restore")
        except (NotFound, Invalid, SnapshotUnusable) as error:
            raise ResumeFailed(f"the snapshot after a turn cannot be used: {error}") from None

    # in RUN

    @contextlib.asynccontextmanager
    async def saving(self, sandbox: Sandbox, version: str | None) -> AsyncIterator[TurnSaver]:
        """Upload what is saved inside the block. `version`: weights version of the endpoint with which the lease begins."""
        ref = self._ref()
        async with (
            TurnSaver(self._uploads, ref, version) as saver,
            ResumeSnapshots(sandbox, self._uploads, ref, saver, self.saved.lost_state) as snapshots,
        ):
            self._saver, self._snapshots = saver, snapshots
            yield saver

    async def go_on(
        self, agent: Agent, handler: GuardedHandler, environment: GuardedEnvironment | None, budget: float
    ) -> None:
        """Let the agent begin with the saved work, save its own, and leave this node, as far as it can. `budget`: seconds of
        RUN. Raises AllocationEnds if it must leave at once, and as `LoopRun.play_again`."""
        saver, snapshots, lease, end = self._saver, self._snapshots, self._lease, self._end
        assert saver is not None
        assert snapshots is not None
        forgets = environment is not None and not environment.saves
        if forgets and lease.resume and end.reason == WALLTIME_REASON and end.is_near(budget - LAST_SECONDS):
            raise AllocationEnds(CANNOT_MOVE_REASON)  # it was placed here as one that can move
        never = why_never(lease, differs=handler.loop_differs, forgets=forgets)
        if lease.lost and not self.saved.turns:
            why = never or self.saved.failed or "no turn was saved"
            dropped = self.saved.count
            begun_again = Resumption(turn=0, reason=lease.lost, node=lease.lost_node, dropped=dropped, why=why)
            self.resumptions = [*self.saved.resumptions, begun_again]
            saver.resume(begun_again, 0)
            await saver.flush()  # it deletes snapshots of dropped turns; later it would delete new ones
        if never is not None:
            return
        if end.is_near():
            raise AllocationEnds(end.reason)
        self._agent = agent
        if isinstance(agent, LoopRun):
            if self.saved.turns:
                await self._play_again(agent, saver, budget)
            agent.save_with(saver, snapshots, end)
        else:
            if self.saved.turns:
                agent.play_again(self.saved.turns, self._report(saver))
            agent.save_with(saver, end) if isinstance(agent, OwnLoopRun) else agent.save()
        if self._looked_into:  # in INIT, or while the saved turns were played again
            saver.stop(LOOKED_INTO)

    async def _play_again(self, loop: LoopRun, saver: TurnSaver, budget: float) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(budget):
                replay = await loop.play_again(self.saved.turns, self.saved.begun_with)
        except TimeoutError:
            raise StageTimeout(f"playing saved turns again took more than {budget:g} s") from None
        failpoint("after-replay")
        loop.report(saver, self._resumed(replay, began), changed=replay.changed)
        await saver.flush()  # as in `go_on`

    def _report(self, saver: TurnSaver) -> ReportReplay:
        began = time.monotonic()

        async def report(replay: Replay, stored: int) -> None:
            saver.resume(self._resumed(replay, began), stored)
            await saver.flush()  # as in `go_on`

        return report

    def _resumed(self, replay: Replay, began: float) -> Resumption:
        resumption = self.saved.resumption(self._lease, replay, time.monotonic() - began)
        log.info("rollout %s goes on %s", self._lease.id, resumption.sentence)
        self.resumptions = [*self.saved.resumptions, resumption]
        return resumption

    def note_look(self) -> None:
        """Save no further turns: what somebody's program changes in the sandbox would be missing elsewhere."""
        self._looked_into = True
        if self._saver is not None:
            self._saver.stop(LOOKED_INTO)

    @property
    def can_leave(self) -> bool:
        """Whether another node agent can go on with the agent's work."""
        return self._agent is not None

    async def suspend(self, grace: float, longest: float) -> bool:
        """Save what another node agent needs to go on. The agent does nothing more here. Return whether it has ended, so that
        there is nothing to go on with. `grace`, `longest`: as of `LoopRun.suspend`."""
        if (agent := self._agent) is None:
            return False
        began = time.monotonic()
        await (agent.suspend(grace, longest) if isinstance(agent, LoopRun) else agent.suspend(longest))
        waited, count = time.monotonic() - began, self._saver.stored if self._saver is not None else 0
        log.info("rollout %s leaves after %.1f s, with %d saved turns", self._lease.id, waited, count)
        return agent.ended

    @property
    def metrics(self) -> dict[str, float]:
        """Number of snapshots, and what they cost."""
        return self._snapshots.metrics if self._snapshots is not None else {}
