"""Reports of one node agent about one rollout each."""

from __future__ import annotations

from rollyard.kinds.rollout import Status
from rollyard.server.rollouts.results import Upload
from rollyard.server.rollouts.service import RolloutService
from rollyard.wire.node import LeaseRef, ResultHeader


async def run_stored(
    rollouts: RolloutService, ref: LeaseRef, holder_uid: str, result: bytes, versions: frozenset[str] = frozenset()
) -> None:
    """Store the end of RUN. Raises Fenced."""
    header = ResultHeader(lease=ref, status=Status.COMPLETED, weights_versions=sorted(versions))
    (error,) = await rollouts.store_runs([Upload(header, result, b"")], holder_uid)
    if error is not None:
        raise error


async def finish(rollouts: RolloutService, header: ResultHeader, holder_uid: str, blob: bytes | None) -> None:
    """Store the end of a rollout. Raises Fenced."""
    (error,) = await rollouts.finish_all([(header, blob)], holder_uid)
    if error is not None:
        raise error
