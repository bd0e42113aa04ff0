"""Durable state of batches: the batch, its groups, their series, the tasks and their history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rollyard.kinds.batch import BatchKey, BatchStatus
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Status


class GroupState(StrEnum):
    """State of a group. `Open` and `Informative` are live: the group is not whole, or it waits for a batch."""

    OPEN = "Open"
    INFORMATIVE = "Informative"
    DELIVERED = "Delivered"
    UNINFORMATIVE = "Uninformative"
    FAULTY = "Faulty"
    CANCELLED = "Cancelled"

    @property
    def live(self) -> bool:
        return self in (GroupState.OPEN, GroupState.INFORMATIVE)


@dataclass(frozen=True, slots=True)
class EndedRollout:
    """Terminal rollout of a group."""

    sample: int
    status: Status
    reward: float | None
    tokens: int
    turns: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The n rollouts of one task. The group's id is the `group` of its rollouts."""

    namespace: str
    id: str
    series: str
    number: int
    """Order of the draw within the series."""
    pool: str
    n: int
    task_index: int
    epoch: int
    drawn_at: float
    drawn_step: int
    """Training step of the series at the draw."""
    batch: str | None
    """Batch that the group counts for; None: it is carried over and waits for the next batch of the series."""
    state: GroupState = GroupState.OPEN
    delivery: int | None = None
    """Position among the groups that the batch delivered, from 1."""
    ended: tuple[EndedRollout, ...] = ()
    tries: int = 0
    """Number of faulty groups of this task before this one, in this epoch."""

    @property
    def whole(self) -> bool:
        return len(self.ended) == self.n

    @property
    def tokens(self) -> int:
        return sum(rollout.tokens for rollout in self.ended)


@dataclass(frozen=True, slots=True)
class LengthSums:
    """Sums over rollouts with a reward, and over shares of discarded rollouts."""

    rollouts: float = 0.0
    tokens: float = 0.0
    turns: float = 0.0
    seconds: float = 0.0

    def plus(self, ended: Sequence[EndedRollout]) -> LengthSums:
        scored = [r for r in ended if r.status.scored]
        return LengthSums(
            self.rollouts + len(scored),
            self.tokens + sum(r.tokens for r in scored),
            self.turns + sum(r.turns for r in scored),
            self.seconds + sum(r.seconds for r in scored),
        )

    def __add__(self, other: LengthSums) -> LengthSums:
        return LengthSums(
            self.rollouts + other.rollouts,
            self.tokens + other.tokens,
            self.turns + other.turns,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch's request and counters; only `server.batches.advance` changes them."""

    namespace: str
    id: str
    digest: str
    """sha256 of the canonical request, by which bodies are compared."""
    request: str
    """The accepted `BatchRequest` as JSON. Of the request's tasks it has only the first; the others are in `dataset_tasks`."""
    pool: str
    series: str
    created_at: float
    seq: int = 0
    """Order of arrival; the store sets it at the first put."""
    status: BatchStatus = BatchStatus.RUNNING
    ended_at: float | None = None
    engine_priority: bool = False
    """Whether the engines of the pool order requests by priority."""
    slots: int = 0
    """Number of rollouts that the pool can work on for this batch at once; 0 while no node agent is connected."""
    step: int = 0
    """Number of training steps of the series before this batch."""
    settled: float = 0.0
    """Number of groups of the series whose verdict is known; older ones count less."""
    settled_informative: float = 0.0
    queue_rank: float = 0.0
    """Rank of its last rollout in the pool's queue."""
    open: int = 0
    """Number of groups without a verdict."""
    informative: int = 0
    """Number of informative groups that are not whole."""
    unfinished: int = 0
    """Number of rollouts of the live groups that have not ended."""
    delivered: int = 0
    acknowledged: int = 0
    drawn: int = 0
    carried_in: int = 0
    passed_over: int = 0
    all_low: int = 0
    all_high: int = 0
    other: int = 0
    faulty: int = 0
    faulty_in_a_row: int = 0
    wasted_tokens: int = 0
    drained: bool = False
    staleness: int = 0
    """Sum, over delivered groups, of the training steps between draw and use."""
    whole_lengths: LengthSums = LengthSums()
    """Lengths in whole informative groups."""
    delivered_lengths: LengthSums = LengthSums()

    @property
    def key(self) -> BatchKey:
        return BatchKey(self.namespace, self.id)

    @property
    def pool_key(self) -> PoolKey:
        return PoolKey(self.namespace, self.pool)

    @property
    def in_flight(self) -> int:
        return self.open + self.informative


@dataclass(frozen=True, slots=True)
class PutBack:
    """Task of a faulty group, to be drawn again."""

    index: int
    epoch: int
    tries: int
    """Number of faulty groups of this task in this epoch."""
    due: int
    """Number of the first group for which the task may be drawn again."""


@dataclass(frozen=True, slots=True)
class SeriesRecord:
    """State that the batches of a series share: the source with its position, and observed rates."""

    namespace: str
    name: str
    digest: str
    """Digest of the tasks that are drawn."""
    dataset: str | None
    """Name of the dataset from which tasks are drawn."""
    seed: int | None
    """Seed of the order of draws; None for the order of the source."""
    tasks: int | None
    """Number of tasks; None while a plug-in has not given it."""
    epoch: int = 0
    position: int = 0
    next_number: int = 0
    """Number of the next group."""
    put_back: tuple[PutBack, ...] = ()
    step: int = 0
    """Number of training steps taken with its groups."""
    settled: float = 0.0
    settled_informative: float = 0.0
    passed_over: int = 0
    whole_lengths: LengthSums = LengthSums()
    delivered_lengths: LengthSums = LengthSums()


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """Earlier groups of one task of a dataset."""

    groups: int = 0
    informative: int = 0
    streak: int = 0
    """Number of uninformative groups in a row, up to now."""
    rollouts: int = 0
    """Number of rollouts with a reward in the means below."""
    seconds: float = 0.0
    """Mean seconds of a rollout."""
    tokens: float = 0.0
    """Mean sampled tokens of a rollout."""


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """Uploaded dataset: a name for tasks."""

    namespace: str
    name: str
    digest: str
    tasks: int
    kinds: tuple[str, ...]
    """Kinds of its tasks, without repetition."""
    created_at: float


class BatchTables(Protocol):
    """Operations on batches inside `Store.transact`."""

    def batch(self, key: BatchKey) -> BatchRecord | None: ...

    def put_batch(self, record: BatchRecord) -> BatchRecord:
        """Insert or replace; sets `seq`."""
        ...

    def running(self) -> list[BatchRecord]:
        """Batches that have not ended, in order of arrival."""
        ...

    def group(self, namespace: str, id: str) -> GroupRecord | None: ...

    def put_group(self, record: GroupRecord) -> None: ...

    def live_groups(self, key: BatchKey) -> list[GroupRecord]:
        """Live groups of a batch, oldest first."""
        ...

    def carried(self, namespace: str, series: str, pool: str | None = None, n: int | None = None) -> list[GroupRecord]:
        """Groups of a series that wait for a batch, oldest first: of all pools, or those that a batch can take over."""
        ...

    def note_acknowledged(self, key: BatchKey, after: int, upto: int, at: float) -> None:
        """Note that the groups of these deliveries were used, at this time (Unix seconds)."""
        ...

    def unended(self, namespace: str, group: str) -> list[str]:
        """Ids of a group's rollouts that are not terminal."""
        ...

    def series(self, namespace: str, name: str) -> SeriesRecord | None: ...

    def series_of_dataset(self, namespace: str, dataset: str) -> list[str]:
        """Names of the series that draw from a dataset."""
        ...

    def put_series(self, record: SeriesRecord) -> None: ...

    def dataset(self, namespace: str, name: str) -> DatasetRecord | None: ...

    def put_dataset(self, record: DatasetRecord) -> None: ...

    def delete_dataset(self, namespace: str, name: str) -> None:
        """Delete the dataset with its history and its series, and the tasks that are used nowhere else."""
        ...

    def task(self, digest: str, index: int) -> str | None:
        """A task as JSON."""
        ...

    def add_tasks(self, digest: str, start: int, tasks: Sequence[str]) -> None:
        """Store tasks as JSON. Tasks that are stored already stay."""
        ...

    def stored_tasks(self, digest: str) -> int:
        """Number of tasks under this digest."""
        ...

    def history(self, namespace: str, dataset: str, index: int) -> TaskHistory | None: ...

    def put_history(self, namespace: str, dataset: str, index: int, record: TaskHistory) -> None: ...
