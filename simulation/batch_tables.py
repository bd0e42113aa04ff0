"""Tables of batches and rollouts in memory: what `Settlement` reads and writes, without a database's time."""

from __future__ import annotations

from dataclasses import replace

from rollyard.kinds.batch import BatchKey
from rollyard.kinds.pool import PoolKey
from rollyard.server.rollouts.step import Granted, step
from rollyard.store.base import QueueRanks, RolloutRecord
from rollyard.store.batch_records import BatchRecord, GroupRecord, SeriesRecord, StepRecord, TaskHistory


class MemoryTables:
    """The part of `Transaction` and `BatchTransaction` that one series on one pool needs."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self.latest_batch: dict[BatchKey, BatchRecord] = {}
        self.groups: dict[str, GroupRecord] = {}
        """Live groups only."""
        self.delivered: list[GroupRecord] = []
        self.rollouts: dict[str, RolloutRecord] = {}
        """Rollouts that have not ended, as they were submitted."""
        self.started: dict[str, float] = {}
        """Times at which the running ones of them were started."""
        self._series: SeriesRecord | None = None
        self._steps: dict[tuple[int, str], StepRecord] = {}
        self._history: dict[int, TaskHistory] = {}
        self._ranks = QueueRanks()
        self._seq = 0

    @property
    def batches(self) -> MemoryTables:
        return self

    # rollouts

    def get(self, namespace: str, id: str) -> RolloutRecord | None:
        record = self.rollouts.get(id)
        if record is None or id not in self.started:
            return record
        return step(record, Granted(self.started[id], "u/i", "node", {}))[0]

    def put(self, record: RolloutRecord) -> RolloutRecord:
        if record.status.terminal:
            del self.rollouts[record.id]
            return record
        self._seq += 1
        self.rollouts[record.id] = replace(record, seq=self._seq)
        return self.rollouts[record.id]

    def queue_ranks(self, pool: PoolKey) -> QueueRanks:
        return self._ranks

    def put_queue_ranks(self, pool: PoolKey, ranks: QueueRanks) -> None:
        self._ranks = ranks

    def unended(self, namespace: str, group: str) -> list[str]:
        ids = (f"{group}.{sample}" for sample in range(self.groups[group].n))
        return [id for id in ids if id in self.rollouts]

    # batches, groups, series, tasks

    def batch(self, key: BatchKey) -> BatchRecord | None:
        return self.latest_batch.get(key)

    def put_batch(self, record: BatchRecord) -> BatchRecord:
        self.latest_batch = {record.key: record}
        return record

    def group(self, namespace: str, id: str) -> GroupRecord | None:
        return self.groups.get(id)

    def put_group(self, record: GroupRecord) -> None:
        if record.state.live:
            self.groups[record.id] = record
        else:
            self.groups.pop(record.id, None)
            self.delivered += [record] if record.delivery else []

    def live_groups(self, key: BatchKey) -> list[GroupRecord]:
        return sorted((g for g in self.groups.values() if g.batch == key.id), key=lambda g: g.number)

    def carried(self, namespace: str, series: str, pool: str | None = None, n: int | None = None) -> list[GroupRecord]:
        return sorted((g for g in self.groups.values() if g.batch is None), key=lambda g: g.number)

    def series(self, namespace: str, name: str) -> SeriesRecord | None:
        return self._series

    def put_series(self, record: SeriesRecord) -> None:
        self._series = record

    def training_step(self, namespace: str, series: str, step: int, batch: str) -> StepRecord | None:
        return self._steps.get((step, batch))

    def put_training_step(self, record: StepRecord) -> None:
        self._steps[record.step, record.batch] = record

    def task(self, digest: str, index: int) -> str | None:
        return f'{{"kind": "made", "index": {index}}}'

    def stored_tasks(self, digest: str) -> int:
        return self._tasks

    def history(self, namespace: str, dataset: str, index: int) -> TaskHistory | None:
        return self._history.get(index)

    def put_history(self, namespace: str, dataset: str, index: int, record: TaskHistory) -> None:
        self._history[index] = record
