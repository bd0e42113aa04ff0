"""Turns of RUN, and snapshots, that node agents save so that other node agents can go on with the rollout."""

from __future__ import annotations

from dataclasses import dataclass

import zstandard

from rollyard.core.errors import Invalid, TooLarge
from rollyard.core.failpoints import failpoint
from rollyard.core.telemetry import RESUMED_TURNS, ROLLOUTS_RESUMED, TURNS_SAVED
from rollyard.kinds.resumption import Resumption
from rollyard.kinds.rollout import Stage
from rollyard.server.rollouts.lease_reports import Report, about_snapshot, held_record
from rollyard.server.rollouts.record_changes import RecordChanges
from rollyard.server.rollouts.step import Event, SnapshotTaken, TurnsSaved, check_fence
from rollyard.store.base import RolloutRecord, StoredSnapshot
from rollyard.store.rollout_transaction import Transaction
from rollyard.trajectory.frames import unframed, unsealed
from rollyard.wire.node import SnapshotHeader, TurnsHeader

MAX_HEADER_BYTES = 64 << 10
MAX_TURN_BYTES = 16 << 20
"""Greatest number of compressed bytes of one rollout's saved turns."""
MAX_POOL_TURN_BYTES, MAX_POOL_SNAPSHOT_BYTES = 1 << 30, 16 << 30
"""Greatest numbers of bytes of the saved turns and of the snapshots that are stored for the rollouts of a pool."""
MAX_UNPACKED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TurnsUpload:
    header: TurnsHeader
    bodies: list[bytes]
    """New turns, compressed."""


def split_turns(body: bytes) -> TurnsUpload:
    """Split a sealed upload into the header (one line of JSON) and the turns. Raises Invalid."""
    try:
        line, newline, rest = unsealed(body).partition(b"\n")
        if not newline or len(line) > MAX_HEADER_BYTES:
            raise ValueError("a line of JSON (TurnsHeader) must come before the frames of the turns")
        header, bodies = TurnsHeader.model_validate_json(line, extra="ignore"), unframed(rest)
        sizes = [zstandard.get_frame_parameters(frame).content_size for frame in bodies]
    except (ValueError, zstandard.ZstdError) as error:
        raise Invalid(f"these are not saved turns: {error}") from None
    if any(size > MAX_UNPACKED_BYTES for size in sizes):  # an unknown size is a huge number
        raise Invalid(f"a saved turn may have at most {MAX_UNPACKED_BYTES} bytes, and must state how many it has")
    return TurnsUpload(header, bodies)


def turns_report(upload: TurnsUpload, holder_uid: str, now: float) -> Report:
    """Raises Fenced, Invalid and TooLarge before anything is written."""
    header = upload.header

    def pick(tx: Transaction) -> list[tuple[RolloutRecord, Event]]:
        record = held_record(tx, header.lease, holder_uid)
        check_fence(record, header.lease.fence)
        if record.stage is Stage.EVAL:
            return []  # a repeated upload that arrives late: the result of RUN has the turns
        if header.kept > record.saved_turns:
            raise Invalid(
                f"rollout {record.id} has only {record.saved_turns} saved turns; {header.kept} were to be kept"
            )
        stored, added = tx.resume_state(record), sum(map(len, upload.bodies))
        if stored.turn_bytes + added > MAX_TURN_BYTES:
            raise TooLarge(f"the saved turns of one rollout may have at most {MAX_TURN_BYTES} bytes")
        if tx.resume_totals(record.pool_key)[0] + added > MAX_POOL_TURN_BYTES:
            raise TooLarge(f"the saved turns of pool {record.pool!r} have more than {MAX_POOL_TURN_BYTES} bytes")
        resumed = header.resumed
        told = resumed.model_dump() if resumed is not None else None
        if told is not None and stored.resumptions[-1:] == (told,):
            resumed = told = None  # a repeated upload
        turns = header.kept + len(upload.bodies)
        if turns:  # else all that is stored is deleted with the change of the record
            tx.put_turns(record, header.kept, upload.bodies, told)
            failpoint("before-turns-commit")
        if resumed is not None:
            tx.delete_snapshots_after(record, header.kept)
        return [(record, TurnsSaved(now, header.lease.fence, turns, resumed, header.weights_version, header.stopped))]

    return pick


def put_resume_snapshot(
    tx: Transaction, changes: RecordChanges, header: SnapshotHeader, holder_uid: str, archive: bytes, now: float
) -> None:
    """Store the newest snapshot of a held sandbox, in place of the one before. Raises Fenced, Invalid, TooLarge."""
    record = held_record(tx, header.lease, holder_uid)
    record = changes.step(tx, record, SnapshotTaken(now, header.lease.fence))
    if not 0 < header.turn <= record.saved_turns or not archive:
        raise Invalid(
            f"rollout {record.id} has {record.saved_turns} saved turns, and none with the number {header.turn}"
        )
    before = tx.resume_state(record).snapshot
    replaced = before.blob.length if before is not None and before.blob is not None else 0
    if tx.resume_totals(record.pool_key)[1] - replaced + len(archive) > MAX_POOL_SNAPSHOT_BYTES:
        raise TooLarge(f"the snapshots of pool {record.pool!r} have more than {MAX_POOL_SNAPSHOT_BYTES} bytes")
    blob = tx.add_blob(archive)
    failpoint("after-snapshot-pack")
    tx.put_resume_snapshot(record, StoredSnapshot(about_snapshot(header, blob, now), blob))


def count(resumed: Resumption | None, saved: int) -> None:
    """Count stored turns, and a lease that followed a lost one, in the metrics."""
    TURNS_SAVED.inc(saved)
    if resumed is not None:
        ROLLOUTS_RESUMED.labels("AfterTurn" if resumed.turn else "FromBeginning").inc()
        RESUMED_TURNS.labels("kept").inc(resumed.turn)
        RESUMED_TURNS.labels("replayed").inc(resumed.replayed)
        RESUMED_TURNS.labels("dropped").inc(resumed.dropped)
