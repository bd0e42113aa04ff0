"""Queries about batches, for the read connections and for the writer."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence

from rollyard.kinds.batch import BatchKey
from rollyard.store.batch_codec import BATCH_COLUMNS, GROUP_COLUMNS, SERIES_COLUMNS, STEP_COLUMNS, parse
from rollyard.store.batch_records import (
    BatchRecord,
    DatasetRecord,
    GroupRecord,
    RewardSums,
    SeriesRecord,
    StepRecord,
    TaskHistory,
)

BATCHES = f"SELECT {', '.join(BATCH_COLUMNS)}, body FROM batches"
_GROUPS = f"SELECT {', '.join(GROUP_COLUMNS)}, body FROM batch_groups"
_STEPS = f"SELECT {', '.join(STEP_COLUMNS)}, body FROM training_steps"
_DATASETS = "SELECT namespace, name, digest, tasks, kinds, created_at FROM datasets"


class BatchQueries:
    """Queries on one connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def batch(self, key: BatchKey) -> BatchRecord | None:
        row = self._db.execute(f"{BATCHES} INDEXED BY batches_by_id WHERE namespace = ? AND id = ?", key).fetchone()
        return parse(BatchRecord, BATCH_COLUMNS, row) if row else None

    def batch_with_series(self, key: BatchKey) -> tuple[BatchRecord, SeriesRecord | None] | None:
        """Return a batch and its series; None if there is no such batch."""
        found = self.batch(key)
        return (found, self.series(found.namespace, found.series)) if found is not None else None

    def list_batches(
        self, namespace: str, limit: int, series: str | None = None
    ) -> list[tuple[BatchRecord, SeriesRecord | None]]:
        """Return the last `limit` batches, each with its series, newest first. `series`: only those of this series."""
        where, values = "NOT INDEXED WHERE namespace = ?", [namespace]
        if series is not None:
            where, values = "INDEXED BY batches_by_series WHERE namespace = ? AND series = ?", [namespace, series]
        rows = self._db.execute(f"{BATCHES} {where} ORDER BY seq DESC LIMIT ?", (*values, limit))
        records = [parse(BatchRecord, BATCH_COLUMNS, row) for row in rows]
        by_name = {name: self.series(namespace, name) for name in {r.series for r in records}}
        return [(r, by_name[r.series]) for r in records]

    def running(self) -> list[BatchRecord]:
        """Batches that have not ended, in order of arrival."""
        rows = self._db.execute(f"{BATCHES} INDEXED BY batches_running WHERE status = 'Running' ORDER BY seq")
        return [parse(BatchRecord, BATCH_COLUMNS, row) for row in rows]

    def group(self, namespace: str, id: str) -> GroupRecord | None:
        row = self._db.execute(f"{_GROUPS} WHERE namespace = ? AND id = ?", (namespace, id)).fetchone()
        return parse(GroupRecord, GROUP_COLUMNS, row) if row else None

    def live_groups(self, key: BatchKey) -> list[GroupRecord]:
        """Live groups of a batch, oldest first."""
        rows = self._db.execute(
            f"{_GROUPS} INDEXED BY groups_live WHERE namespace = ? AND batch = ? AND state IN ('Open', 'Informative') "
            "ORDER BY number",
            key,
        )
        return [parse(GroupRecord, GROUP_COLUMNS, row) for row in rows]

    def delivered(self, key: BatchKey, after: int, limit: int) -> list[GroupRecord]:
        """Return the batch's groups whose delivery number is greater than `after`, in order."""
        rows = self._db.execute(
            f"{_GROUPS} INDEXED BY groups_delivered WHERE namespace = ? AND batch = ? AND delivery > ? "
            "AND delivery IS NOT NULL ORDER BY delivery LIMIT ?",
            (*key, after, limit),
        )
        return [parse(GroupRecord, GROUP_COLUMNS, row) for row in rows]

    def carried(self, namespace: str, series: str, pool: str | None = None, n: int | None = None) -> list[GroupRecord]:
        """Groups of a series that wait for a batch, oldest first. `pool`, `n`: only groups with these values."""
        rows = self._db.execute(
            f"{_GROUPS} INDEXED BY groups_carried WHERE batch IS NULL AND state IN ('Open', 'Informative') "
            "AND namespace = ? AND series = ? ORDER BY number",
            (namespace, series),
        )
        found = [parse(GroupRecord, GROUP_COLUMNS, row) for row in rows]
        return [g for g in found if pool in (None, g.pool) and n in (None, g.n)]

    def unended(self, namespace: str, group: str) -> list[str]:
        """Ids of a group's rollouts that are not terminal."""
        query = (
            "SELECT id FROM rollouts INDEXED BY rollouts_by_group "
            'WHERE namespace = ? AND "group" = ? AND cursor IS NULL ORDER BY seq'
        )
        return [id for (id,) in self._db.execute(query, (namespace, group))]

    def series(self, namespace: str, name: str) -> SeriesRecord | None:
        query = f"SELECT {', '.join(SERIES_COLUMNS)}, body FROM series WHERE namespace = ? AND name = ?"
        row = self._db.execute(query, (namespace, name)).fetchone()
        return parse(SeriesRecord, SERIES_COLUMNS, row) if row else None

    def training_step(self, namespace: str, series: str, step: int, batch: str) -> StepRecord | None:
        place = "namespace = ? AND series = ? AND step = ? AND batch = ?"
        row = self._db.execute(f"{_STEPS} WHERE {place}", (namespace, series, step, batch)).fetchone()
        return parse(StepRecord, STEP_COLUMNS, row) if row else None

    def training_steps(self, namespace: str, series: str, batch: str | None, limit: int) -> list[StepRecord]:
        """Return the last `limit` training steps of a series, oldest first. `batch`: only those of this batch."""
        rows = self._db.execute(
            f"{_STEPS} WHERE namespace = ? AND series = ? AND (? IS NULL OR batch = ?) ORDER BY step DESC, batch DESC LIMIT ?",
            (namespace, series, batch, batch, limit),
        )
        return [parse(StepRecord, STEP_COLUMNS, row) for row in rows][::-1]

    def reward_means(self, namespace: str, batches: Sequence[str]) -> dict[str, float]:
        """Return the mean reward of each batch over the rollouts of its groups with a verdict. Batches without a reward are
        left out."""
        where = f"namespace = ? AND batch IN ({', '.join('?' * len(batches))})"
        sums: defaultdict[str, list[RewardSums]] = defaultdict(list)
        for row in self._db.execute(f"{_STEPS} INDEXED BY steps_of_batch WHERE {where}", (namespace, *batches)):
            step = parse(StepRecord, STEP_COLUMNS, row)
            sums[step.batch] += [step.used, step.unused]
        counts = {batch: sum(one.rollouts for one in found) for batch, found in sums.items()}
        return {batch: sum(one.rewards for one in sums[batch]) / count for batch, count in counts.items() if count}

    def dataset(self, namespace: str, name: str) -> DatasetRecord | None:
        row = self._db.execute(f"{_DATASETS} WHERE namespace = ? AND name = ?", (namespace, name)).fetchone()
        return _dataset(row) if row else None

    def list_datasets(self, namespace: str) -> list[DatasetRecord]:
        return [
            _dataset(row) for row in self._db.execute(f"{_DATASETS} WHERE namespace = ? ORDER BY name", (namespace,))
        ]

    def series_of_dataset(self, namespace: str, dataset: str) -> list[str]:
        """Names of the series that draw from a dataset."""
        rows = self._db.execute("SELECT name FROM series WHERE namespace = ? AND dataset = ?", (namespace, dataset))
        return [name for (name,) in rows]

    def task(self, digest: str, index: int) -> str | None:
        """Return a task as JSON; None if it is not stored."""
        row = self._db.execute(
            "SELECT body FROM dataset_tasks WHERE digest = ? AND idx = ?", (digest, index)
        ).fetchone()
        return str(row[0]) if row else None

    def tasks(self, digest: str, start: int, limit: int) -> list[str]:
        """Return the tasks with indices from `start` on, as JSON."""
        query = "SELECT body FROM dataset_tasks WHERE digest = ? AND idx >= ? ORDER BY idx LIMIT ?"
        return [body for (body,) in self._db.execute(query, (digest, start, limit))]

    def stored_tasks(self, digest: str) -> int:
        """Number of tasks under this digest: the greatest index plus 1."""
        (last,) = self._db.execute("SELECT max(idx) FROM dataset_tasks WHERE digest = ?", (digest,)).fetchone()
        return 0 if last is None else int(last) + 1

    def history(self, namespace: str, dataset: str, index: int) -> TaskHistory | None:
        row = self._db.execute(
            "SELECT body FROM task_history WHERE namespace = ? AND dataset = ? AND idx = ?", (namespace, dataset, index)
        ).fetchone()
        return parse(TaskHistory, (), row) if row else None

    def histories(self, namespace: str, dataset: str) -> list[TaskHistory]:
        """Return the histories of a dataset's tasks. Tasks without a history are left out."""
        rows = self._db.execute(
            "SELECT body FROM task_history WHERE namespace = ? AND dataset = ?", (namespace, dataset)
        )
        return [parse(TaskHistory, (), row) for row in rows]


def _dataset(row: tuple[str, str, str, int, str, float]) -> DatasetRecord:
    namespace, name, digest, tasks, kinds, created_at = row
    return DatasetRecord(namespace, name, digest, tasks, tuple(kinds.split(",")), created_at)
