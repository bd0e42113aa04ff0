"""Turns and snapshots of rollouts in RUN, with which another node agent goes on. The archives are blobs in the packs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.store import row_codec
from rollyard.store.base import RolloutRecord, StoredSnapshot


@dataclass(frozen=True, slots=True)
class SomeTurns:
    """Some of the saved turns of a rollout, for people who look at it while it runs."""

    fence: int
    attempt: int
    status: str
    total: int
    """Number of saved turns."""
    turns: tuple[tuple[int, bytes], ...]
    """(number from 1 on, compressed turn)."""


PACK = "substr(blob, 3, instr(blob, '.pack') + 2)"
"""SQL expression for the name of the pack in the column `blob`."""
NEEDED = "SELECT blob FROM resume_states WHERE blob IS NOT NULL"


@dataclass(frozen=True, slots=True)
class ResumeState:
    """Snapshot and resumptions that belong to the saved turns of one rollout."""

    turn_bytes: int = 0
    snapshot: StoredSnapshot | None = None
    resumptions: tuple[dict[str, Any], ...] = ()


def state(db: sqlite3.Connection, rollout: int) -> ResumeState:
    query = "SELECT turn_bytes, blob, snapshot, resumptions FROM resume_states WHERE rollout = ?"
    row = db.execute(query, (rollout,)).fetchone()
    if row is None:
        return ResumeState()
    size, blob, about, resumptions = row
    snapshot = None
    if blob is not None:
        described = RolloutSnapshot.model_validate_json(about, extra="ignore")
        snapshot = StoredSnapshot(described, row_codec.blob_of(blob))
    return ResumeState(size, snapshot, tuple(json.loads(resumptions)))


def turns(db: sqlite3.Connection, rollout: int) -> list[bytes]:
    """Return the turns, the first one first."""
    return [body for (body,) in db.execute("SELECT body FROM saved_turns WHERE rollout = ? ORDER BY turn", (rollout,))]


def some_turns(db: sqlite3.Connection, namespace: str, id: str, fence: int, after: int, most: int) -> SomeTurns | None:
    """Return at most `most` saved turns behind the first `after` ones, or from the first one on if the rollout's fence is not
    `fence`; None if there is no such rollout. It is one statement, because a new lease may change the turns at any time."""
    query = (
        "SELECT r.fence, r.attempt, r.status, r.saved_turns, t.turn, t.body FROM rollouts r LEFT JOIN saved_turns t "
        "ON t.rollout = r.seq AND t.turn > iif(r.fence = ?, ?, 0) WHERE r.namespace = ? AND r.id = ? ORDER BY t.turn LIMIT ?"
    )
    rows = db.execute(query, (fence, after, namespace, id, most)).fetchall()
    if not rows:
        return None
    fence, attempt, status, total, *_ = rows[0]
    found = tuple((turn, body) for *_, turn, body in rows if body is not None)
    return SomeTurns(fence, attempt, status, total, found)


def totals(db: sqlite3.Connection, pool: PoolKey) -> tuple[int, int]:
    """Return the bytes of the turns and those of the snapshots of a pool's rollouts."""
    query = "SELECT turn_bytes, snapshot_bytes FROM resume_totals WHERE namespace = ? AND pool = ?"
    return db.execute(query, pool).fetchone() or (0, 0)


def all_totals(db: sqlite3.Connection) -> dict[PoolKey, tuple[int, int]]:
    """Return these bytes by pool."""
    rows = db.execute("SELECT namespace, pool, turn_bytes, snapshot_bytes FROM resume_totals")
    return {PoolKey(namespace, pool): (turns, snapshots) for namespace, pool, turns, snapshots in rows}


def put_turns(
    db: sqlite3.Connection,
    record: RolloutRecord,
    kept: int,
    bodies: Sequence[bytes],
    resumption: dict[str, Any] | None = None,
) -> None:
    """Store turns behind the first `kept` ones. Those that were stored there are deleted, and a snapshot after one of them is
    deleted too. `resumption`: the one with which the lease began, if it is new."""
    before = state(db, record.seq)
    (gone,) = db.execute(
        "SELECT COALESCE(sum(length(body)), 0) FROM saved_turns WHERE rollout = ? AND turn > ?", (record.seq, kept)
    ).fetchone()
    db.execute("DELETE FROM saved_turns WHERE rollout = ? AND turn > ?", (record.seq, kept))
    rows = [(record.seq, turn, body) for turn, body in enumerate(bodies, start=kept + 1)]
    db.executemany("INSERT INTO saved_turns VALUES (?, ?, ?)", rows)
    if before.snapshot is not None and before.snapshot.about.turn > kept:
        _put_snapshot(db, record, None)
    added = sum(map(len, bodies)) - gone
    resumptions = json.dumps([*before.resumptions, resumption] if resumption is not None else before.resumptions)
    db.execute(
        "INSERT INTO resume_states (rollout, namespace, pool, turn_bytes, resumptions) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (rollout) DO UPDATE SET turn_bytes = turn_bytes + excluded.turn_bytes, "
        "resumptions = excluded.resumptions",
        (record.seq, *record.pool_key, added, resumptions),
    )
    _count(db, record.pool_key, added, 0)


def put_snapshot(db: sqlite3.Connection, record: RolloutRecord, snapshot: StoredSnapshot) -> None:
    """Store the newest snapshot in place of the one before. The turn after which it was taken must be stored."""
    _put_snapshot(db, record, snapshot)


def delete(db: sqlite3.Connection, record: RolloutRecord) -> None:
    """Delete the turns and the snapshot of a rollout."""
    _put_snapshot(db, record, None)
    _count(db, record.pool_key, -state(db, record.seq).turn_bytes, 0)
    db.execute("DELETE FROM saved_turns WHERE rollout = ?", (record.seq,))
    db.execute("DELETE FROM resume_states WHERE rollout = ?", (record.seq,))


def uses_pack(db: sqlite3.Connection, pack: str) -> bool:
    return db.execute(f"{NEEDED} AND {PACK} = ?", (pack,)).fetchone() is not None


def _put_snapshot(db: sqlite3.Connection, record: RolloutRecord, snapshot: StoredSnapshot | None) -> None:
    loose = f"INSERT OR IGNORE INTO loose_packs SELECT {PACK}, NULL FROM resume_states WHERE rollout = ? AND blob IS NOT NULL"
    db.execute(loose, (record.seq,))
    row = db.execute("SELECT snapshot_bytes FROM resume_states WHERE rollout = ?", (record.seq,)).fetchone()
    blob = snapshot.blob if snapshot is not None else None
    size = blob.length if blob is not None else 0
    about = snapshot.about.model_dump_json() if snapshot is not None else None
    db.execute(
        "UPDATE resume_states SET blob = ?, snapshot = ?, snapshot_bytes = ? WHERE rollout = ?",
        (row_codec.blob_text(blob) if blob is not None else None, about, size, record.seq),
    )
    _count(db, record.pool_key, 0, size - (row[0] if row is not None else 0))


def _count(db: sqlite3.Connection, pool: PoolKey, turn_bytes: int, snapshot_bytes: int) -> None:
    if turn_bytes or snapshot_bytes:
        db.execute(
            "INSERT INTO resume_totals VALUES (?, ?, ?, ?) ON CONFLICT (namespace, pool) DO UPDATE SET "
            "turn_bytes = turn_bytes + excluded.turn_bytes, snapshot_bytes = snapshot_bytes + excluded.snapshot_bytes",
            (*pool, turn_bytes, snapshot_bytes),
        )
