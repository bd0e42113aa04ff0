"""Deletion of batches that ended long ago, and of groups that a trainer has used. Each step is one transaction.

The tasks of a dataset and their history stay as long as the dataset. Tasks of a request or a plug-in are deleted with
the last series that draws from them. After a crash between two steps the next pass continues.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from rollyard.kinds.batch import BatchKey, BatchRequest
from rollyard.kinds.pool import PoolKey
from rollyard.store import pruning
from rollyard.store.batch_codec import BATCH_COLUMNS, parse
from rollyard.store.batch_queries import BATCHES, BatchQueries
from rollyard.store.batch_records import BatchRecord
from rollyard.store.batch_transaction import BatchTransaction
from rollyard.store.writer import WriteUnit

DELETED_TASKS = 5000
"""Greatest number of tasks that one transaction deletes."""
GroupName = tuple[str, str]
"""(namespace, id)."""
GroupRows = Mapping[GroupName, Sequence[int]]
"""Group -> keys (`seq`) of the group's rollouts. Rows that must stay (see `pruning.NOT_NEWEST`) are left out."""


def acknowledged_before(db: sqlite3.Connection, at: float, limit: int) -> GroupRows:
    """Return at most `limit` groups that were acknowledged before this time, the earliest first."""
    groups = (
        "SELECT namespace, id FROM acknowledged_groups INDEXED BY acknowledged_by_time WHERE acknowledged_at < ? "
        "ORDER BY acknowledged_at LIMIT ?"
    )
    return _with_rows(db, db.execute(groups, (at, limit)).fetchall())


def delivered_groups(db: sqlite3.Connection, key: BatchKey, limit: int) -> GroupRows:
    """Return the first `limit` groups that a batch delivered."""
    return _with_rows(db, [(g.namespace, g.id) for g in BatchQueries(db).delivered(key, 0, limit)])


def _with_rows(db: sqlite3.Connection, groups: Sequence[GroupName]) -> GroupRows:
    rows = (
        f'SELECT seq FROM rollouts INDEXED BY rollouts_by_group WHERE namespace = ? AND "group" = ? '
        f"AND {pruning.NOT_NEWEST}"
    )
    return {key: [seq for (seq,) in db.execute(rows, key)] for key in groups}


def delete_groups(unit: WriteUnit, groups: GroupRows) -> int:
    """Delete these groups with their rollouts; return the number of deleted rollouts."""
    for table in ("acknowledged_groups", "batch_groups"):
        unit.db.executemany(f"DELETE FROM {table} WHERE namespace = ? AND id = ?", list(groups))
    return sum(
        pruning.delete_ended(unit, rows[i : i + pruning.DELETED_ROWS])
        for rows in groups.values()
        for i in range(0, len(rows), pruning.DELETED_ROWS)
    )


def pools_with_batches(db: sqlite3.Connection) -> list[PoolKey]:
    """Pools in which batches have ended, including deleted pools."""
    query = "SELECT DISTINCT namespace, pool FROM batches INDEXED BY batches_ended WHERE ended_at IS NOT NULL"
    return [PoolKey(*row) for row in db.execute(query)]


def ended_before(db: sqlite3.Connection, pool: PoolKey, at: float, limit: int) -> list[BatchRecord]:
    """Batches of a pool that ended before this time, the oldest first."""
    rows = db.execute(
        f"{BATCHES} INDEXED BY batches_ended WHERE namespace = ? AND pool = ? AND ended_at IS NOT NULL AND ended_at < ? "
        "ORDER BY ended_at LIMIT ?",
        (*pool, at, limit),
    )
    return [parse(BatchRecord, BATCH_COLUMNS, row) for row in rows]


def delete_batch(unit: WriteUnit, batch: BatchRecord) -> bool:
    """Delete a batch whose delivered groups are already deleted. Also delete its series if only this batch can use the
    series.

    Return whether the batch is deleted. A call deletes at most DELETED_TASKS tasks of the series. If there are more,
    the batch stays.
    """
    if BatchRequest.model_validate_json(batch.request).own_series and not _is_series_shared(unit.db, batch):
        tables = BatchTransaction(unit.db)
        series = tables.series(batch.namespace, batch.series)
        if series is not None and not tables.drop_series(series, DELETED_TASKS):
            return False
    unit.db.execute("DELETE FROM training_steps WHERE namespace = ? AND batch = ?", batch.key)
    unit.db.execute("DELETE FROM batches WHERE seq = ?", (batch.seq,))
    return True


def _is_series_shared(db: sqlite3.Connection, batch: BatchRecord) -> bool:
    """Whether another batch has the same series, or a group in the series waits for another batch."""
    others = "SELECT 1 FROM batches INDEXED BY batches_by_series WHERE namespace = ? AND series = ? AND seq <> ?"
    if db.execute(others, (batch.namespace, batch.series, batch.seq)).fetchone():
        return True
    return bool(BatchQueries(db).carried(batch.namespace, batch.series))
