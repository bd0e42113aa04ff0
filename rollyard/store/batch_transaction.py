"""Batches in a write transaction: batches, their groups, series, datasets, and the history of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollyard.kinds.batch import BatchKey
from rollyard.store.batch_codec import BATCH_COLUMNS, GROUP_COLUMNS, SERIES_COLUMNS, STEP_COLUMNS, body
from rollyard.store.batch_queries import BatchQueries
from rollyard.store.batch_records import BatchRecord, DatasetRecord, GroupRecord, SeriesRecord, StepRecord, TaskHistory


class BatchTransaction(BatchQueries):
    """Operations on batches inside `RolloutStore.transact` and `BatchStore.transact`, on the writer's connection. Do not use
    them after the transaction has ended."""

    def put_batch(self, record: BatchRecord) -> BatchRecord:
        """Insert or replace a batch. The first put sets `seq`."""
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

    def put_group(self, record: GroupRecord) -> None:
        values = [getattr(record, name) for name in GROUP_COLUMNS]
        self._db.execute(
            f"INSERT OR REPLACE INTO batch_groups ({', '.join(GROUP_COLUMNS)}, body) "
            f"VALUES ({', '.join('?' * len(GROUP_COLUMNS))}, ?)",
            [*values, body(record)],
        )

    def note_acknowledged(self, key: BatchKey, after: int, upto: int, at: float) -> None:
        """Record that the trainer has used the deliveries `after` + 1 to `upto`. `at`: Unix seconds."""
        self._db.execute(
            "INSERT OR IGNORE INTO acknowledged_groups SELECT namespace, id, ? FROM batch_groups INDEXED BY groups_delivered "
            "WHERE namespace = ? AND batch = ? AND delivery IS NOT NULL AND delivery > ? AND delivery <= ?",
            (at, *key, after, upto),
        )

    def put_series(self, record: SeriesRecord) -> None:
        values = [getattr(record, name) for name in SERIES_COLUMNS]
        self._db.execute(
            f"INSERT OR REPLACE INTO series ({', '.join(SERIES_COLUMNS)}, body) VALUES (?, ?, ?, ?, ?)",
            [*values, body(record)],
        )

    def put_training_step(self, record: StepRecord) -> None:
        values = [getattr(record, name) for name in STEP_COLUMNS]
        self._db.execute("INSERT OR REPLACE INTO training_steps VALUES (?, ?, ?, ?, ?)", [*values, body(record)])

    def put_dataset(self, record: DatasetRecord) -> None:
        values = (record.namespace, record.name, record.digest, record.tasks, ",".join(record.kinds))
        self._db.execute("INSERT INTO datasets VALUES (?, ?, ?, ?, ?, ?)", (*values, record.created_at))

    def delete_dataset(self, namespace: str, name: str) -> None:
        """Delete the dataset, its history and its series. Tasks that nothing else uses are deleted too."""
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

    def add_tasks(self, digest: str, start: int, tasks: Sequence[str]) -> None:
        """Store tasks (JSON) under the indices from `start` on. Stored tasks are not replaced."""
        rows = ((digest, start + i, text) for i, text in enumerate(tasks))
        self._db.executemany("INSERT OR IGNORE INTO dataset_tasks VALUES (?, ?, ?)", rows)

    def put_history(self, namespace: str, dataset: str, index: int, record: TaskHistory) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO task_history VALUES (?, ?, ?, ?)", (namespace, dataset, index, body(record))
        )
