"""Deletion of ended rollouts, of their artifacts, and of packs (files of stored results) that are no longer needed. Each
step is one transaction or one unlink.

A pack becomes loose when a record that names the pack is deleted, or no longer names it. A pack that no record needs is
kept for a while, then deleted. A loose pack with little needed data is compacted: the needed results are written again,
and their records are updated. If the server crashes between two steps, the next run of the pruning continues.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.kinds.pool import PoolKey
from rollyard.store import metadata_items, row_codec, saved_turn_table, snapshot_table
from rollyard.store.base import BlobRef
from rollyard.store.writer import WriteUnit

_PACK = "substr({0}, 3, instr({0}, '.pack') + 2)"
"""SQL expression for the name of the pack in a reference to a result. The reference is a JSON list that begins with
this name; {0} stands for the reference's column."""
_NEEDED = (
    "SELECT result AS ref FROM rollouts WHERE result IS NOT NULL UNION ALL "
    "SELECT artifact FROM rollouts WHERE artifact IS NOT NULL UNION ALL "
    f"{snapshot_table.NEEDED} UNION ALL {saved_turn_table.NEEDED}"
)

NOT_NEWEST = (
    "cursor IS NOT NULL AND seq < (SELECT max(seq) FROM rollouts) "
    "AND cursor < (SELECT max(cursor) FROM rollouts INDEXED BY rollouts_finished WHERE cursor IS NOT NULL)"
)
"""Condition for rows that may be deleted. Two rows stay: the one with the greatest seq, and the one with the greatest
cursor. The numbers of new rows continue from these two numbers."""
_OF_KEPT_GROUP = (
    "EXISTS (SELECT 1 FROM batch_groups WHERE batch_groups.namespace = rollouts.namespace "
    "AND batch_groups.id = rollouts.\"group\" AND state IN ('Open', 'Informative', 'Delivered'))"
)
_DELETE_GIVEN_UP = (
    "DELETE FROM batch_groups WHERE namespace = ? AND id = ? AND state IN ('Uninformative', 'Faulty', 'Cancelled') "
    "AND NOT EXISTS (SELECT 1 FROM rollouts INDEXED BY rollouts_by_group WHERE rollouts.namespace = batch_groups.namespace "
    'AND rollouts."group" = batch_groups.id)'
)
_COLUMNS = ("result", "artifact")
DELETED_ROWS = 200
"""Greatest number of rollouts that one statement deletes. A larger number would delay other writes."""


@dataclass(frozen=True, slots=True)
class LoosePack:
    name: str
    unused_since: float | None
    """Time at which the pack was found unused (Unix seconds); None if it has not been found unused."""
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """Result or artifact of a rollout. `seq`: key of the rollout's row. `column`: of the reference."""

    seq: int
    column: str
    ref: BlobRef


def pools_with_ended(db: sqlite3.Connection) -> list[PoolKey]:
    """Pools in which rollouts have ended, including deleted pools."""
    return [PoolKey(*row) for row in db.execute("SELECT DISTINCT namespace, pool FROM tallies")]


def ended_before(db: sqlite3.Connection, pool: PoolKey, at: float, limit: int) -> list[int]:
    """Keys (`seq`) of at most `limit` rollouts of this pool that ended before this time, the oldest first.

    Three kinds of rollouts are left out: those of groups that a batch may still deliver; those of delivered groups,
    which `batch_pruning` deletes; and those whose rows must stay (`NOT_NEWEST`).
    """
    query = (
        "SELECT seq FROM rollouts INDEXED BY rollouts_ended WHERE cursor IS NOT NULL AND namespace = ? AND pool = ? "
        f"AND finished_at < ? AND {NOT_NEWEST} AND NOT {_OF_KEPT_GROUP} ORDER BY finished_at LIMIT ?"
    )
    return [seq for (seq,) in db.execute(query, (*pool, at, limit))]


def delete_ended(unit: WriteUnit, rows: Sequence[int]) -> int:
    """Delete these rows, and record the packs of their results as loose. Return the number of deleted rows.

    A group that no batch uses (Uninformative, Faulty or Cancelled) is deleted with its last rollout.
    """
    marks = ", ".join("?" * len(rows))
    grouped = f'SELECT DISTINCT namespace, "group" FROM rollouts WHERE seq IN ({marks}) AND "group" IS NOT NULL'
    groups = unit.db.execute(grouped, rows).fetchall()
    for column in _COLUMNS:
        _loosen(unit, column, rows)
    snapshot_table.delete(unit.db, rows)
    metadata_items.delete(unit.db, rows)
    unit.db.execute(f"DELETE FROM requests WHERE seq IN ({marks})", rows)
    deleted = unit.db.execute(f"DELETE FROM rollouts WHERE seq IN ({marks}) AND cursor IS NOT NULL", rows).rowcount
    unit.db.executemany(_DELETE_GIVEN_UP, groups)
    return deleted


def artifacts_before(db: sqlite3.Connection, pool: PoolKey, at: float, limit: int) -> list[int]:
    """Keys (`seq`) of at most `limit` rollouts of this pool that ended before this time and have an artifact."""
    query = (
        "SELECT seq FROM rollouts INDEXED BY rollouts_with_artifact WHERE cursor IS NOT NULL AND artifact IS NOT NULL "
        "AND namespace = ? AND pool = ? AND finished_at < ? LIMIT ?"
    )
    return [seq for (seq,) in db.execute(query, (*pool, at, limit))]


def delete_artifacts(unit: WriteUnit, rows: Sequence[int]) -> int:
    """Delete the artifacts of these ended rollouts, and record their packs as loose. Return the number of artifacts."""
    _loosen(unit, "artifact", rows)
    marks = ", ".join("?" * len(rows))
    return unit.db.execute(f"UPDATE rollouts SET artifact = NULL WHERE seq IN ({marks})", rows).rowcount


def _loosen(unit: WriteUnit, column: str, rows: Sequence[int]) -> None:
    unit.db.execute(
        f"INSERT OR IGNORE INTO loose_packs SELECT DISTINCT {_PACK.format(column)}, NULL FROM rollouts "
        f"WHERE seq IN ({', '.join('?' * len(rows))}) AND {column} IS NOT NULL",
        rows,
    )


def loose_packs(db: sqlite3.Connection) -> list[LoosePack]:
    """Loose packs, each with the number of its bytes that records still need. Reads all records, unless no pack is loose."""
    loose = dict(db.execute("SELECT pack, unused_since FROM loose_packs"))
    if not loose:
        return []
    rest = f"SELECT {_PACK.format('ref')} AS pack, substr(ref, instr(ref, '\", ') + 3) AS rest FROM ({_NEEDED})"
    length = "CAST(substr(rest, instr(rest, ', ') + 2) AS INTEGER)"  # CAST reads the number at the start of the text
    needed = dict(db.execute(f"SELECT pack, sum({length}) FROM ({rest}) GROUP BY pack"))
    return [LoosePack(name, since, needed.get(name, 0)) for name, since in loose.items()]


def blobs_in(db: sqlite3.Connection, pack: str) -> list[StoredBlob]:
    """Results and artifacts of ended rollouts in a pack, ordered by their position in the pack. Empty if a live rollout or
    a snapshot also needs the pack."""
    of_pack = " OR ".join(f"({column} IS NOT NULL AND {_PACK.format(column)} = ?)" for column in _COLUMNS)
    live = f"SELECT 1 FROM rollouts INDEXED BY rollouts_live WHERE cursor IS NULL AND ({of_pack})"
    if db.execute(live, (pack,) * len(_COLUMNS)).fetchone():
        return []  # the live rollout's record may change at any time, and the pack must stay anyway
    if snapshot_table.uses_pack(db, pack) or saved_turn_table.uses_pack(db, pack):
        return []  # snapshots are not moved; they are deleted with their rollouts
    found = [
        StoredBlob(seq, column, row_codec.blob_of(text))
        for column in _COLUMNS
        for seq, text in db.execute(
            f"SELECT seq, {column} FROM rollouts WHERE {column} IS NOT NULL AND {_PACK.format(column)} = ?", (pack,)
        )
    ]
    return sorted(found, key=lambda one: one.ref.offset)


def move_blobs(unit: WriteUnit, moved: Sequence[tuple[StoredBlob, bytes]]) -> None:
    """Write these blobs again, and store the new references in the records. Deleted records are skipped."""
    for one, data in moved:
        before, where = row_codec.blob_text(one.ref), f"WHERE seq = ? AND {one.column} = ?"
        if unit.db.execute(f"SELECT 1 FROM rollouts {where}", (one.seq, before)).fetchone():
            after = row_codec.blob_text(unit.packs.add(data))
            unit.db.execute(f"UPDATE rollouts SET {one.column} = ? {where}", (after, one.seq, before))


def set_unused_since(unit: WriteUnit, pack: str, at: float | None) -> None:
    unit.db.execute("UPDATE loose_packs SET unused_since = ? WHERE pack = ?", (at, pack))


def forget_pack(unit: WriteUnit, pack: str) -> None:
    """Remove a deleted pack from the list of loose packs."""
    unit.db.execute("DELETE FROM loose_packs WHERE pack = ?", (pack,))
