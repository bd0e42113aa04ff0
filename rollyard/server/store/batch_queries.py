"""Queries about batches, for the read connections and for the writer."""

from __future__ import annotations

import sqlite3

from rollyard.kinds.batch import BatchKey
from rollyard.kinds.pool import PoolKey
from rollyard.server.store.batch_codec import BATCH_COLUMNS, GROUP_COLUMNS, SERIES_COLUMNS, parse
from rollyard.server.store.batch_records import BatchRecord, DatasetRecord, GroupRecord, SeriesRecord, TaskHistory

_BATCHES = f"SELECT {', '.join(BATCH_COLUMNS)}, body FROM batches"
_GROUPS = f"SELECT {', '.join(GROUP_COLUMNS)}, body FROM batch_groups"
_DATASETS = "SELECT namespace, name, digest, tasks, kinds, created_at FROM datasets"


def batch(db: sqlite3.Connection, key: BatchKey) -> BatchRecord | None:
    row = db.execute(f"{_BATCHES} INDEXED BY batches_by_id WHERE namespace = ? AND id = ?", key).fetchone()
    return parse(BatchRecord, BATCH_COLUMNS, row) if row else None


def batch_with_series(db: sqlite3.Connection, key: BatchKey) -> tuple[BatchRecord, SeriesRecord | None] | None:
    found = batch(db, key)
    return (found, series(db, found.namespace, found.series)) if found is not None else None


def list_batches(db: sqlite3.Connection, namespace: str, limit: int) -> list[tuple[BatchRecord, SeriesRecord | None]]:
    rows = db.execute(f"{_BATCHES} NOT INDEXED WHERE namespace = ? ORDER BY seq DESC LIMIT ?", (namespace, limit))
    records = [parse(BatchRecord, BATCH_COLUMNS, row) for row in rows]
    by_name = {name: series(db, namespace, name) for name in {r.series for r in records}}
    return [(r, by_name[r.series]) for r in records]


def running(db: sqlite3.Connection) -> list[BatchRecord]:
    rows = db.execute(f"{_BATCHES} INDEXED BY batches_running WHERE status = 'Running' ORDER BY seq")
    return [parse(BatchRecord, BATCH_COLUMNS, row) for row in rows]


def ended_before(db: sqlite3.Connection, pool: PoolKey, at: float, limit: int) -> list[BatchRecord]:
    """Batches of a pool that ended before this time, the oldest first."""
    rows = db.execute(
        f"{_BATCHES} INDEXED BY batches_ended WHERE namespace = ? AND pool = ? AND ended_at IS NOT NULL AND ended_at < ? "
        "ORDER BY ended_at LIMIT ?",
        (*pool, at, limit),
    )
    return [parse(BatchRecord, BATCH_COLUMNS, row) for row in rows]


def group(db: sqlite3.Connection, namespace: str, id: str) -> GroupRecord | None:
    row = db.execute(f"{_GROUPS} WHERE namespace = ? AND id = ?", (namespace, id)).fetchone()
    return parse(GroupRecord, GROUP_COLUMNS, row) if row else None


def live_groups(db: sqlite3.Connection, key: BatchKey) -> list[GroupRecord]:
    rows = db.execute(
        f"{_GROUPS} INDEXED BY groups_live WHERE namespace = ? AND batch = ? AND state IN ('Open', 'Informative') "
        "ORDER BY number",
        key,
    )
    return [parse(GroupRecord, GROUP_COLUMNS, row) for row in rows]


def delivered(db: sqlite3.Connection, key: BatchKey, after: int, limit: int) -> list[GroupRecord]:
    rows = db.execute(
        f"{_GROUPS} INDEXED BY groups_delivered WHERE namespace = ? AND batch = ? AND delivery > ? "
        "AND delivery IS NOT NULL ORDER BY delivery LIMIT ?",
        (*key, after, limit),
    )
    return [parse(GroupRecord, GROUP_COLUMNS, row) for row in rows]


def carried(
    db: sqlite3.Connection, namespace: str, series: str, pool: str | None = None, n: int | None = None
) -> list[GroupRecord]:
    rows = db.execute(
        f"{_GROUPS} INDEXED BY groups_carried WHERE batch IS NULL AND state IN ('Open', 'Informative') "
        "AND namespace = ? AND series = ? ORDER BY number",
        (namespace, series),
    )
    found = [parse(GroupRecord, GROUP_COLUMNS, row) for row in rows]
    return [g for g in found if pool in (None, g.pool) and n in (None, g.n)]


def series(db: sqlite3.Connection, namespace: str, name: str) -> SeriesRecord | None:
    query = f"SELECT {', '.join(SERIES_COLUMNS)}, body FROM series WHERE namespace = ? AND name = ?"
    row = db.execute(query, (namespace, name)).fetchone()
    return parse(SeriesRecord, SERIES_COLUMNS, row) if row else None


def dataset(db: sqlite3.Connection, namespace: str, name: str) -> DatasetRecord | None:
    row = db.execute(f"{_DATASETS} WHERE namespace = ? AND name = ?", (namespace, name)).fetchone()
    return _dataset(row) if row else None


def list_datasets(db: sqlite3.Connection, namespace: str) -> list[DatasetRecord]:
    return [_dataset(row) for row in db.execute(f"{_DATASETS} WHERE namespace = ? ORDER BY name", (namespace,))]


def _dataset(row: tuple[str, str, str, int, str, float]) -> DatasetRecord:
    namespace, name, digest, tasks, kinds, created_at = row
    return DatasetRecord(namespace, name, digest, tasks, tuple(kinds.split(",")), created_at)


def series_of_dataset(db: sqlite3.Connection, namespace: str, dataset: str) -> list[str]:
    """Names of the series that draw from a dataset."""
    return [
        name
        for (name,) in db.execute("SELECT name FROM series WHERE namespace = ? AND dataset = ?", (namespace, dataset))
    ]


def histories(db: sqlite3.Connection, namespace: str, dataset: str) -> list[TaskHistory]:
    """Return the histories of a dataset's tasks. Tasks without a history are left out."""
    rows = db.execute("SELECT body FROM task_history WHERE namespace = ? AND dataset = ?", (namespace, dataset))
    return [parse(TaskHistory, (), row) for row in rows]
