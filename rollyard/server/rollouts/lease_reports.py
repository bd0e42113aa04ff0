"""Results and snapshots that node agents report for their leases, and the check that they hold these leases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollyard.core.errors import Fenced, TooLarge
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.server.rollouts.record_changes import RecordChanges
from rollyard.server.rollouts.results import Upload
from rollyard.server.rollouts.step import Event, Finished, RunStored, SnapshotTaken, check_fence
from rollyard.store.base import BlobRef, RolloutRecord, StoredSnapshot, allocation_uid
from rollyard.store.rollout_transaction import Transaction
from rollyard.wire.node import LeaseRef, ResultHeader, SnapshotHeader

MAX_SNAPSHOTS_BYTES = 512 << 20
"""Greatest number of bytes of a rollout's snapshots together."""
Report = Callable[[Transaction], list[tuple[RolloutRecord, Event]]]
"""Function that returns the events of a report, each with its record. It adds the report's blob to the transaction."""


def held_record(tx: Transaction, ref: LeaseRef, holder_uid: str) -> RolloutRecord:
    """Return the record of a lease. Raises Fenced if the rollout is unknown or another allocation holds it."""
    record = tx.get(ref.namespace, ref.id)
    if record is None:
        raise Fenced(f"this server does not know rollout {ref.id!r}; drop its work")
    if record.holder is not None and allocation_uid(record.holder) != holder_uid:
        raise Fenced(f"lease {ref.fence} of rollout {ref.id} belongs to another allocation; drop its work")
    return record


def run_report(run: Upload, holder_uid: str, now: float) -> Report:
    """`run`: an upload with tokens and artifact."""
    header, result, artifact = run.header, run.outcome, run.artifact
    assert result is not None
    assert artifact is not None

    def pick(tx: Transaction) -> list[tuple[RolloutRecord, Event]]:
        record = held_record(tx, header.lease, holder_uid)
        check_fence(record, header.lease.fence)  # before the blobs are added, so that a void lease writes nothing
        if record.stage is Stage.EVAL:
            return []
        blobs = (tx.add_blob(result), tx.add_blob(artifact))
        return [(record, RunStored(now, header.lease.fence, *blobs, _versions(header), header.timings))]

    return pick


def result_report(header: ResultHeader, blob: bytes | None, holder_uid: str, max_attempts: int, now: float) -> Report:
    """`blob`: the tokens, which replace those of RUN; None if RUN has stored all that there is, or if there are none."""
    ref, status = header.lease, Status(header.status)
    summary: dict[str, Any] = {
        **header.timings, "turns": header.turns, "tokens": header.tokens, "prompt_tokens": header.prompt_tokens,
        "tool_calls": header.tool_calls, "parts": header.parts, "metrics": header.metrics, "notes": header.notes,
    }  # fmt: skip
    if header.profile is not None:
        summary["profile"] = header.profile.model_dump(mode="json", exclude_defaults=True)

    def pick(tx: Transaction) -> list[tuple[RolloutRecord, Event]]:
        record = held_record(tx, ref, holder_uid)
        check_fence(record, ref.fence)  # before the blob is added, so that a void lease writes nothing
        result = tx.add_blob(blob) if blob is not None else None
        if result is not None and record.result is not None:
            tx.drop_blob(record.result)
        told = (status, header.reward, header.error, result, max_attempts, header.sampled, _versions(header), summary)
        return [(record, Finished(now, ref.fence, *told))]

    return pick


def _versions(header: ResultHeader) -> tuple[str, ...]:
    """Return the weights versions that have a name. An external model server tells none."""
    return tuple(version for version in header.weights_versions if version)


def put_snapshot(
    tx: Transaction, changes: RecordChanges, header: SnapshotHeader, holder_uid: str, archive: bytes, now: float
) -> None:
    """Store a snapshot of a held sandbox. Raises Fenced, TooLarge."""
    record = held_record(tx, header.lease, holder_uid)
    record = changes.step(tx, record, SnapshotTaken(now, header.lease.fence))
    others = sum(s.about.size for s in tx.snapshots(record) if s.about.turn != header.turn)
    if archive and others + len(archive) > MAX_SNAPSHOTS_BYTES:
        raise TooLarge(
            f"the snapshots of one rollout may have at most {MAX_SNAPSHOTS_BYTES} bytes together, and those of "
            f"earlier turns have {others}; this one has {len(archive)}"
        )
    blob = tx.add_blob(archive) if archive else None
    tx.put_snapshot(record, StoredSnapshot(about_snapshot(header, blob, now), blob))


def about_snapshot(header: SnapshotHeader, blob: BlobRef | None, now: float) -> RolloutSnapshot:
    return RolloutSnapshot(
        turn=header.turn,
        size=blob.length if blob else 0,
        sha256=blob.sha256 if blob else "",
        archive_bytes=header.archive_bytes,
        files=header.files,
        left_out=header.left_out,
        left_out_count=header.left_out_count,
        image=header.image,
        created_at=now,
        error=header.error,
    )
