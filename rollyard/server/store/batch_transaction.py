"""`BatchTables` on the writer's connection, for use inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from rollyard.kinds.batch import BatchKey
from rollyard.server.store import batch_queries
from rollyard.server.store.batch_codec import BATCH_COLUMNS, GROUP_COLUMNS, SERIES_COLUMNS, body, parse
from rollyard.server.store.batch_records import BatchRecord, DatasetRecord, GroupRecord, SeriesRecord, TaskHistory


class SqliteBatchTables:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def batch(self, key: BatchKey) -> BatchRecord | None:
        return batch_queries.batch(self._db, key)

    def put_batch(self, record: BatchRecord) -> BatchRecord:
        text = body(record)
        if record.seq:
            moving = (record.status.value, record.ended_at, text)
            self._db.execute(
                "UPDATE batches SET status = ?, ended_at = ?, body = ? WHERE seq = ?", (*moving, record.seq)
            )
            return record
        names = [name for name in BATCH_COLUMNS if name != "seq"]
        values = [getattr(record, name) for name in names]
        seq = self._db.execute(
            f"INSERT INTO batches ({', '.join(names)}, body) VALUES ({', '.join('?' * len(names))}, ?)", [*values, text]
        ).lastrowid
        assert seq is not None
        return replace(record, seq=seq)

    def running(self) -> list[BatchRecord]:
        return batch_queries.running(self._db)

    def group(self, namespace: str, id: str) -> GroupRecord | None:
        return batch_queries.group(self._db, namespace, id)

    def put_group(self, record: GroupRecord) -> None:
        values = [getattr(record, name) for name in GROUP_COLUMNS]
        self._db.execute(
            f"INSERT OR REPLACE INTO batch_groups ({', '.join(GROUP_COLUMNS)}, body) "
            f"VALUES ({', '.join('?' * len(GROUP_COLUMNS))}, ?)",
            [*values, body(record)],
        )

    def live_groups(self, key: BatchKey) -> list[GroupRecord]:
        return batch_queries.live_groups(self._db, key)

    def carried(self, namespace: str, series: str, pool: str | None = None, n: int | None = None) -> list[GroupRecord]:
        return batch_queries.carried(self._db, namespace, series, pool, n)

    def note_acknowledged(self, key: BatchKey, after: int, upto: int, at: float) -> None:
        self._db.execute(
            "INSERT OR IGNORE INTO acknowledged_groups SELECT namespace, id, ? FROM batch_groups INDEXED BY groups_delivered "
            "WHERE namespace = ? AND batch = ? AND delivery IS NOT NULL AND delivery > ? AND delivery <= ?",
            (at, *key, after, upto),
        )

    def unended(self, namespace: str, group: str) -> list[str]:
        query = (
            "SELECT id FROM rollouts INDEXED BY rollouts_by_group "
            'WHERE namespace = ? AND "group" = ? AND cursor IS NULL ORDER BY seq'
        )
        return [id for (id,) in self._db.execute(query, (namespace, group))]

    def series(self, namespace: str, name: str) -> SeriesRecord | None:
        return batch_queries.series(self._db, namespace, name)

    def series_of_dataset(self, namespace: str, dataset: str) -> list[str]:
        return batch_queries.series_of_dataset(self._db, namespace, dataset)

    def put_series(self, record: SeriesRecord) -> None:
        values = [getattr(record, name) for name in SERIES_COLUMNS]
        self._db.execute(
            f"INSERT OR REPLACE INTO series ({', '.join(SERIES_COLUMNS)}, body) VALUES (?, ?, ?, ?, ?)",
            [*values, body(record)],
        )

    def dataset(self, namespace: str, name: str) -> DatasetRecord | None:
        return batch_queries.dataset(self._db, namespace, name)

    def put_dataset(self, record: DatasetRecord) -> None:
        values = (record.namespace, record.name, record.digest, record.tasks, ",".join(record.kinds))
        self._db.execute("INSERT INTO datasets VALUES (?, ?, ?, ?, ?, ?)", (*values, record.created_at))

    def delete_dataset(self, namespace: str, name: str) -> None:
        found = self.dataset(namespace, name)
        if found is None:
            return
        for table, column in (("datasets", "name"), ("task_history", "dataset"), ("series", "dataset")):
            self._db.execute(f"DELETE FROM {table} WHERE namespace = ? AND {column} = ?", (namespace, name))
        if not self._are_tasks_used(found.digest):
            self._db.execute("DELETE FROM dataset_tasks WHERE digest = ?", (found.digest,))

    def drop_series(self, series: SeriesRecord, limit: int) -> bool:
        """Delete a series, and its tasks if nothing else uses them. Return whether the series is deleted.

        At most `limit` tasks are deleted, the last ones first. If tasks remain, the series stays.
        """
        place = (series.namespace, series.name)
        if not self._are_tasks_used(series.digest, *place):
            keep = max(0, self.stored_tasks(series.digest) - limit)
            self._db.execute("DELETE FROM dataset_tasks WHERE digest = ? AND idx >= ?", (series.digest, keep))
            if keep:
                return False
        self._db.execute("DELETE FROM series WHERE namespace = ? AND name = ?", place)
        return True

    def _are_tasks_used(self, digest: str, *besides: str) -> bool:
        """Whether a dataset or a series has these tasks. `besides`: namespace and name of a series that does not count."""
        others = "SELECT 1 FROM series WHERE digest = ?" + " AND (namespace, name) <> (?, ?)" * bool(besides)
        query = f"SELECT EXISTS (SELECT 1 FROM datasets WHERE digest = ?) OR EXISTS ({others})"
        return bool(self._db.execute(query, (digest, digest, *besides)).fetchone()[0])

    def task(self, digest: str, index: int) -> str | None:
        row = self._db.execute(
            "SELECT body FROM dataset_tasks WHERE digest = ? AND idx = ?", (digest, index)
        ).fetchone()
        return str(row[0]) if row else None

    def add_tasks(self, digest: str, start: int, tasks: Sequence[str]) -> None:
        rows = ((digest, start + i, text) for i, text in enumerate(tasks))
        self._db.executemany("INSERT OR IGNORE INTO dataset_tasks VALUES (?, ?, ?)", rows)

    def stored_tasks(self, digest: str) -> int:
        (last,) = self._db.execute("SELECT max(idx) FROM dataset_tasks WHERE digest = ?", (digest,)).fetchone()
        return 0 if last is None else int(last) + 1

    def history(self, namespace: str, dataset: str, index: int) -> TaskHistory | None:
        row = self._db.execute(
            "SELECT body FROM task_history WHERE namespace = ? AND dataset = ? AND idx = ?", (namespace, dataset, index)
        ).fetchone()
        return parse(TaskHistory, (), row) if row else None

    def put_history(self, namespace: str, dataset: str, index: int, record: TaskHistory) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO task_history VALUES (?, ?, ?, ?)", (namespace, dataset, index, body(record))
        )
