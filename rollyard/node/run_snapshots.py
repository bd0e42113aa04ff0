"""Snapshots of a rollout's sandbox during RUN. Each is uploaded while the agent goes on.

The one with which EVAL begins may be larger than the server takes. Then this node agent alone has it, in a file.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Self

from rollyard.core.aio import end_tasks
from rollyard.core.errors import Invalid, TooLarge
from rollyard.host.node_cache import node_cache
from rollyard.kinds.rollout import AgentSpec
from rollyard.node.eval_files import EvalFiles
from rollyard.node.result_uploads import ResultUploads
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.snapshot import SandboxSnapshot
from rollyard.wire.node import MAX_SNAPSHOT_BYTES, LeaseRef, SnapshotHeader

log = logging.getLogger(__name__)
MAX_WAITING_BYTES = 4 * MAX_SNAPSHOT_BYTES
"""While the archives of a run that wait for the server have more bytes, its turns get no further ones. They are files on the
node's disk. The last one of the run is always taken."""

EVAL_ARCHIVES = 2
"""Greatest length of the archive with which EVAL begins, before it is compressed, as a multiple of the sandbox's disk."""


class RunSnapshots:
    """Takes the snapshots that a request wants, and the one with which EVAL begins. Leaving the block stops uploads that
    `finish` has not waited for."""

    def __init__(
        self, sandbox: Sandbox, uploads: ResultUploads, ref: LeaseRef, agent: AgentSpec, eval_files: EvalFiles | None
    ) -> None:
        """`eval_files`: place for the last snapshot; None if EVAL needs none."""
        self._sandbox = sandbox
        self._uploads = uploads
        self._ref = ref
        self._agent = agent
        self._eval_files = eval_files
        self._one_at_a_time = asyncio.Lock()
        """Only one archive is in memory."""
        self._waiting_bytes = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._last = 0

    async def turn_ended(self, turn: int) -> None:
        """Take the snapshot after this turn, if the request wants one. Turns are counted from 1. Raises SandboxLost."""
        wanted = self._agent.snapshots
        if wanted != "every" and not (isinstance(wanted, list) and turn in wanted):
            return
        if self._waiting_bytes <= MAX_WAITING_BYTES:
            await self._take(turn)
        else:
            self._tell_missing(turn, "the server had not taken the ones before, and the node keeps only some of them")

    async def run_ended(self, turns: int) -> None:
        """Take the last snapshot, if the request or EVAL wants one. `turns`: number of turns. Raises SandboxLost, and if EVAL
        needs it SandboxBroken and NodeFault."""
        if self._eval_files is not None or (self._agent.snapshots in ("last", "every") and turns > self._last):
            await self._take(turns, self._eval_files)

    async def finish(self) -> None:
        """Wait until all snapshots are stored. Raises Fenced if the lease is void."""
        await asyncio.gather(*self._tasks)

    async def _take(self, turn: int, eval_files: EvalFiles | None = None) -> None:
        header = SnapshotHeader(lease=self._ref, turn=turn, image=self._sandbox.image.fingerprint)
        limits: dict[str, Any] = {"most_compressed": MAX_SNAPSHOT_BYTES}
        if eval_files is not None:  # a sandbox whose disk is full has names, modes and holes beside its bytes
            limits = {"limit_bytes": EVAL_ARCHIVES * self._sandbox.spec.limits.disk_bytes}
        try:
            snapshot = await self._sandbox.snapshot(folder=node_cache(), **limits)
        except (OSError, TooLarge) as error:
            if eval_files is not None:
                raise eval_files.missing(error) from None
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            self._tell_missing(turn, why)
        else:
            self._waiting_bytes += snapshot.size
            if eval_files is not None:
                eval_files.keep(snapshot, header.image)
            self._tasks.append(asyncio.create_task(self._upload(_described(header, snapshot), snapshot)))
        self._last = turn

    def _tell_missing(self, turn: int, why: str) -> None:
        log.warning("rollout %s has no snapshot after turn %d: %s", self._ref.id, turn, why)
        header = SnapshotHeader(lease=self._ref, turn=turn, image=self._sandbox.image.fingerprint, error=why)
        self._tasks.append(asyncio.create_task(self._upload(header, None)))

    async def _upload(self, header: SnapshotHeader, snapshot: SandboxSnapshot | None) -> None:
        try:
            async with self._one_at_a_time:
                await self._send(header, snapshot)
        finally:
            if snapshot is not None:
                self._waiting_bytes -= snapshot.size
                if not (self._eval_files and self._eval_files.has(snapshot)):
                    snapshot.close()

    async def _send(self, header: SnapshotHeader, snapshot: SandboxSnapshot | None) -> None:
        try:
            if snapshot is not None and snapshot.size > MAX_SNAPSHOT_BYTES:
                raise TooLarge(
                    f"it has {snapshot.size} bytes, and the server takes at most {MAX_SNAPSHOT_BYTES}; only this node has it"
                )
            await self._uploads.sandbox_snapshot(header, snapshot)
        except (Invalid, TooLarge) as error:
            log.warning("rollout %s has no snapshot after turn %d: %s", self._ref.id, header.turn, error)
            await self._uploads.sandbox_snapshot(header.model_copy(update={"error": str(error), "sha256": ""}), None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(*self._tasks)


def _described(header: SnapshotHeader, snapshot: SandboxSnapshot) -> SnapshotHeader:
    return header.model_copy(
        update={
            "sha256": snapshot.sha256,
            "archive_bytes": snapshot.archive_bytes,
            "files": snapshot.files,
            "left_out": list(snapshot.left_out),
            "left_out_count": snapshot.left_out_count,
        }
    )
