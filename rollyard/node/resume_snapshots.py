"""Snapshots of a sandbox from which another node agent can go on, taken now and then between two turns.

A sandbox that cannot be saved costs its own rollout alone: its turns are played again from INIT on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Self

from rollyard.core.aio import end_tasks
from rollyard.core.errors import ApiError, TooLarge
from rollyard.core.failpoints import failpoint
from rollyard.host.node_cache import node_cache
from rollyard.node.agent_loop import AgentProgress
from rollyard.node.result_uploads import ResultUploads
from rollyard.node.snapshot_cost import Cost, is_due, longest, may_write, not_repeatable
from rollyard.node.turn_saver import TurnSaver
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.snapshot import SandboxSnapshot
from rollyard.trajectory import Turn
from rollyard.wire.node import MAX_SNAPSHOT_BYTES, LeaseRef, SnapshotHeader

log = logging.getLogger(__name__)


class ResumeSnapshots:
    """Takes snapshots when they are due, and uploads each in the background behind the turns before it."""

    def __init__(
        self, sandbox: Sandbox, uploads: ResultUploads, ref: LeaseRef, saver: TurnSaver, lost_state: bool = False
    ) -> None:
        """`lost_state`: whether the sandbox began with a snapshot and without the state of its tools. Then no calls can be run
        again in another sandbox."""
        self._lost_state = lost_state
        self._sandbox = sandbox
        self._uploads = uploads
        self._ref = ref
        self._saver = saver
        self._last: Cost | None = None
        self._since = time.monotonic()
        self.metrics: dict[str, float] = {}
        """Number of snapshots so far, and their seconds and compressed bytes."""
        self._writing_calls = 0
        self._newest = 0
        """Turn of the newest snapshot."""
        self._task: asyncio.Task[None] | None = None
        self.stopped = ""
        """Why no more snapshots are taken; empty while they are."""
        spec = sandbox.spec
        self._has_network = spec.host_network or bool(spec.allowed_hosts)

    async def turn_saved(self, run: AgentProgress) -> None:
        """Take a snapshot after the last turn, if it is due. Raises SandboxLost."""
        self._writing_calls += sum(map(may_write, run.turns[-1].tool_calls))
        busy = self._task is not None and not self._task.done()
        since = time.monotonic() - self._since
        if not busy and is_due(self._last, since, self._writing_calls):
            await self._take(len(run.turns), longest(since))

    async def finish(self, turns: Sequence[Turn]) -> None:
        """Take a last snapshot after these turns, if it is needed, and wait until it is stored. No call may run meanwhile."""
        if self.needed(turns):
            await self._take(len(turns))
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def needed(self, turns: Sequence[Turn]) -> bool:
        """Whether calls since the newest snapshot cannot be run again. `turns`: those so far."""
        later = turns[self._newest :]
        cut = self._writing_calls and any(not_repeatable(turn, self._has_network) for turn in later)
        return bool(cut or (self._lost_state and any(turn.tool_calls for turn in later)))

    async def _take(self, turn: int, seconds: float | None = None) -> None:
        """`seconds`: greatest time; None: as long as it takes."""
        if self.stopped or self._saver.stopped:
            return
        began = time.monotonic()
        failpoint("before-snapshot")
        try:
            async with asyncio.timeout(seconds):
                snapshot = await self._sandbox.snapshot(folder=node_cache(), most_compressed=MAX_SNAPSHOT_BYTES)
        except TimeoutError:
            self._since, self._last = time.monotonic(), Cost(time.monotonic() - began, 0)
            return self._saver.tell(f"there is no snapshot after turn {turn}: it took longer than {seconds:.1f} s")
        except (OSError, TooLarge) as error:
            return self._stop(error)
        failpoint("after-snapshot")
        if self._saver.stopped:  # somebody looked into the sandbox meanwhile
            return snapshot.close()
        self._since, self._writing_calls, self._newest = time.monotonic(), 0, turn
        self._last = Cost(self._since - began, snapshot.size)
        taken = {
            "resume_snapshots": 1.0,
            "resume_snapshot_seconds": self._last.seconds,
            "resume_snapshot_bytes": snapshot.size,
        }
        self.metrics = {name: round(value + self.metrics.get(name, 0.0), 6) for name, value in taken.items()}
        header = SnapshotHeader(
            lease=self._ref,
            turn=turn,
            sha256=snapshot.sha256,
            archive_bytes=snapshot.archive_bytes,
            files=snapshot.files,
            image=self._sandbox.image.fingerprint,
            resume=True,
            seconds=round(self._last.seconds, 6),
        )
        self._task = asyncio.create_task(self._upload(header, snapshot))

    async def _upload(self, header: SnapshotHeader, snapshot: SandboxSnapshot) -> None:
        with snapshot:
            await self._saver.flush()
            if self._saver.stored < header.turn:
                return
            try:
                await self._uploads.sandbox_snapshot(header, snapshot)
                failpoint("after-snapshot-upload")
            except ApiError as error:
                self._stop(error)

    def _stop(self, error: Exception) -> None:
        log.info("rollout %s: no further snapshots to go on from: %s", self._ref.id, error)
        self.stopped = str(error)
        self._saver.tell(f"no snapshots are taken after turn {self._newest}: {error}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            await end_tasks(self._task)
