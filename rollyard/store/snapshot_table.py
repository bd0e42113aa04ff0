"""Snapshots of rollouts' sandboxes. Their archives are blobs in the packs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from rollyard.store import row_codec
from rollyard.store.base import RolloutRecord, StoredSnapshot

PACK = "substr(blob, 3, instr(blob, '.pack') + 2)"
"""SQL expression for the name of the pack in the column `blob`."""
NEEDED = "SELECT blob FROM snapshots WHERE blob IS NOT NULL"
_LOOSE = f"INSERT OR IGNORE INTO loose_packs SELECT DISTINCT {PACK}, NULL FROM snapshots WHERE blob IS NOT NULL"


def put(db: sqlite3.Connection, record: RolloutRecord, snapshot: StoredSnapshot) -> None:
    """Insert or replace a snapshot of the rollout's present attempt. Delete those of earlier attempts."""
    former = "rollout = ? AND (attempt < ? OR (attempt = ? AND turn = ?))"
    values = (record.seq, record.attempt, record.attempt, snapshot.about.turn)
    db.execute(f"{_LOOSE} AND {former}", values)
    db.execute(f"DELETE FROM snapshots WHERE {former}", values)
    blob = row_codec.blob_text(snapshot.blob) if snapshot.blob is not None else None
    row = (record.seq, record.attempt, snapshot.about.turn, blob, snapshot.about.model_dump_json())
    db.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?)", row)


def delete_after(db: sqlite3.Connection, record: RolloutRecord, turn: int) -> None:
    """Delete the snapshots of the rollout after this turn, because its turns from there on are sampled again."""
    later = "rollout = ? AND turn > ?"
    db.execute(f"{_LOOSE} AND {later}", (record.seq, turn))
    db.execute(f"DELETE FROM snapshots WHERE {later}", (record.seq, turn))


def delete(db: sqlite3.Connection, rollouts: Sequence[int]) -> None:
    """Delete the snapshots of these rollouts, and record the packs of their archives as loose."""
    marks = ", ".join("?" * len(rollouts))
    db.execute(f"{_LOOSE} AND rollout IN ({marks})", rollouts)
    db.execute(f"DELETE FROM snapshots WHERE rollout IN ({marks})", rollouts)


def uses_pack(db: sqlite3.Connection, pack: str) -> bool:
    return db.execute(f"{NEEDED} AND {PACK} = ?", (pack,)).fetchone() is not None
