"""Protocol and records of a store.

The effects of a call are on disk before it returns. Writes that wait together are committed together (group commit).
Each has a savepoint of its own, so a failed write undoes no other one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, overload

from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.kinds.batch import BatchKey
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutError, RolloutKey, Stage, Status, WeightsConstraint
from rollyard.server.store.batch_records import (
    BatchRecord,
    BatchTables,
    DatasetRecord,
    GroupRecord,
    SeriesRecord,
    TaskHistory,
)

T = TypeVar("T")
K = TypeVar("K", bound=KindObject)
L = TypeVar("L", bound=KindObject)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: KindObject
    """The object; for DELETED its last state, with the resourceVersion of the deletion."""


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Position of a blob. The blob is fsynced before the row that names it is committed."""

    pack: str
    offset: int
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """A rollout's durable state; only `server.rollouts.step` changes it."""

    namespace: str
    id: str
    digest: str
    """sha256 of the canonical request, by which bodies are compared."""
    request: str
    """The accepted `RolloutRequest` as JSON, n = 1."""
    pool: str
    task_kind: str
    group: str | None
    sample_index: int
    mode: str
    priority: int
    created_at: float
    seq: int = 0
    """Order of arrival; the store sets it at the first put."""
    status: Status = Status.QUEUED
    stage: Stage = Stage.INIT
    """Stage in which a leased rollout is, or with which a queued one begins."""
    attempt: int = 1
    faults: int = 0
    """Infrastructure failures so far. They count as retries."""
    losses: int = 0
    """Leases in a row that ended without a message from their holder. They are no retries, but they have a limit too."""
    fence: int = 0
    """Grows with every lease. A message with a lower fence is void."""
    holder: str | None = None
    """Instance id of the node agent that holds the lease."""
    node: str | None = None
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Role -> endpoint id, chosen with the lease; live sessions are counted from these. While it is queued again: the
    last endpoints, whose caches have its prefix.
    """
    queued_at: float = 0.0
    not_before: float = 0.0
    """End of the back-off in Unix seconds; the rollout is not leased before."""
    queued_seconds: float = 0.0
    """Time in queues so far."""
    run: BlobRef | None = None
    """The stored `RunResult`, once RUN is done."""
    result: BlobRef | None = None
    """The stored `Outcome`, once the rollout has ended."""
    reward: float | None = None
    error: RolloutError | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Small numbers for lists: turns, tokens, tool_calls, timings, metrics."""
    finished_at: float | None = None
    cursor: int | None = None
    """Position among terminal records; the store sets it when the status becomes terminal."""
    min_weights_version: str | None = None
    """Oldest weights version with which the rollout may run."""
    weights: WeightsConstraint | None = None
    """Constraint on the weights after the rollout has begun, or None. When weights change, only records with one are read."""
    weights_version: str | None = None
    """Version of the policy when the lease was granted; removed when the sampling is to be repeated."""
    outdated: int = 0
    """Leases taken back because the weights had become too old. They are no retries, but they have a limit too."""
    queue_rank: float = 0.0
    """Place in the queue within its priority. Ranks grow within a batch, and those of the pool's batches are interleaved.
    All rollouts that belong to no batch count as one more batch."""

    @property
    def key(self) -> RolloutKey:
        return RolloutKey(self.namespace, self.id)

    @property
    def pool_key(self) -> PoolKey:
        return PoolKey(self.namespace, self.pool)

    @property
    def leased(self) -> bool:
        return self.holder is not None


def allocation_uid(holder: str | None) -> str:
    """Uid of the allocation in which a holder of a lease runs; empty if there is no holder."""
    return (holder or "").partition("/")[0]


class Transaction(Protocol):
    """Operations inside `Store.transact`. They run in the writer, and block no other thread."""

    @property
    def batches(self) -> BatchTables: ...

    def get(self, namespace: str, id: str) -> RolloutRecord | None: ...

    def put(self, record: RolloutRecord) -> RolloutRecord:
        """Insert or replace. Sets `seq`, and `cursor` of a terminal record, which is never replaced (Conflict)."""
        ...

    def queued(
        self,
        pools: Sequence[PoolKey],
        stages: Sequence[Stage],
        now: float,
        limit: int,
        *,
        kinds: Collection[str] | None = None,
        minima: Collection[str] | None = None,
        after: RolloutRecord | None = None,
    ) -> list[RolloutRecord]:
        """Records that wait for a lease in these pools, without those in back-off at `now`.

        EVAL before INIT, then by priority, by rank, and in order of arrival. `kinds`: only these task kinds. `minima`:
        only records without a minimum version, or with one of these. `after`: in each stage only records behind this one.
        """
        ...

    def queue_ranks(self, pool: PoolKey) -> QueueRanks: ...

    def put_queue_ranks(self, pool: PoolKey, ranks: QueueRanks) -> None: ...

    def held(self, holder: str | None = None) -> list[RolloutRecord]:
        """Leased records, of one holder or of all."""
        ...

    def version_bound(self, pool: PoolKey) -> list[VersionBound]:
        """Live records of this pool that depend on versions of the weights."""
        ...

    def group_versions(self, namespace: str, group: str) -> GroupVersions:
        """Versions from which the rollouts of a group were sampled or are being sampled."""
        ...

    def add_blob(self, data: bytes) -> BlobRef: ...


@dataclass(frozen=True, slots=True)
class QueueRanks:
    """Ranks of a pool's queue, as in start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).

    New rollouts of a batch get the ranks after its last rank, or after `served`, if `served` is greater.
    """

    served: float = 0.0
    """Greatest rank of a leased rollout."""
    submitted: float = 0.0
    """Last rank of the rollouts that belong to no batch."""

    def first(self, last: float) -> float:
        """Return the next rank of a batch whose last rank was `last`."""
        return max(self.served, last) + 1


@dataclass(frozen=True, slots=True)
class VersionBound:
    """Fields of a record that decide whether its weights still match its request."""

    id: str
    group: str | None
    stage: Stage
    leased: bool
    endpoints: Mapping[str, str]
    weights: WeightsConstraint
    weights_version: str | None


@dataclass(frozen=True, slots=True)
class GroupVersions:
    """Versions of a group's rollouts, except those that ended `Cancelled` or `InfraFailed`."""

    sampled: frozenset[str] = frozenset()
    """Versions of rollouts that have been sampled."""
    begun: frozenset[str] = frozenset()
    """Versions of rollouts that are being sampled."""

    @property
    def fixed(self) -> str | None:
        """Version that the group is bound to; None before its first rollout begins."""
        return min(self.sampled or self.begun, default=None)


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    namespace: str | None = None
    pool: str | None = None
    group: str | None = None
    status: tuple[Status, ...] = ()
    after_seq: int = 0
    limit: int = 500


class Store(Protocol):
    epoch: int
    """Grows with every opening of the store. With it an earlier server's writes to files are refused."""
    server_id: str
    """Random id, made with the store and kept for ever. It distinguishes our jobs from those of another server."""

    # objects

    async def create(self, obj: K) -> K:
        """Store a new object with uid, generation 1, resourceVersion, creationTimestamp. Raises AlreadyExists."""
        ...

    @overload
    async def get(self, key: ObjectKey) -> KindObject: ...
    @overload
    async def get(self, key: ObjectKey, kind: type[K]) -> K: ...
    @overload
    async def get(self, key: ObjectKey, kind: tuple[type[K], type[L]]) -> K | L:
        """Return the object. `kind`: the class that the caller expects, or two, as for isinstance.

        Raises NotFound with kubectl's text, and TypeError if the key names another kind.
        """
        ...

    async def list_objects(self, kind: str, namespace: str | None = None) -> tuple[list[KindObject], str]:
        """All objects of a kind by namespace and name, and the resourceVersion to watch from."""
        ...

    async def update(self, obj: K, part: Literal["spec", "status"]) -> K:
        """Write metadata (labels, annotations, finalizers) and spec, or status alone.

        A given resourceVersion or uid must be the current one (Conflict). Generation grows when spec changes. Nothing
        is written when nothing changes. An object that is being deleted gets no new finalizer (Invalid); it disappears
        with its last finalizer. Raises NotFound.
        """
        ...

    async def delete(self, key: ObjectKey, *, uid: str | None = None) -> KindObject:
        """Set deletionTimestamp if the object has finalizers, else remove it; return its last state.

        Raises NotFound, and Conflict for another uid.
        """
        ...

    async def prune_events(self, older_than: float) -> int:
        """Delete Events last seen before `older_than` (Unix seconds); return how many."""
        ...

    def watch(self, kind: str | None, since: str) -> AsyncIterator[WatchEvent]:
        """Every change after `since`, in order and without a gap.

        Waiting for the next change may be cancelled and begun again; nothing is lost. Raises Expired, here or later,
        when `since` is too long ago, BadRequest when it is no resourceVersion, Unavailable once the store is closed.
        """
        ...

    # rollouts

    async def transact(self, change: Callable[[Transaction], T]) -> T:
        """Run `change` in the writer; return after its effects are on disk.

        An exception of `change` undoes all its writes and is raised to this caller alone. Raises Unavailable when the
        disk is full or fails; then no write happened.
        """
        ...

    async def get_rollout(self, namespace: str, id: str) -> RolloutRecord | None: ...

    async def list_rollouts(self, filter: RolloutFilter) -> list[RolloutRecord]:
        """Records in order of arrival."""
        ...

    async def finished(
        self, after: int, limit: int, namespace: str | None = None, group: str | None = None
    ) -> list[RolloutRecord]:
        """Terminal records after this cursor, in order."""
        ...

    async def newest_seq(self) -> int:
        """Return the seq of the newest rollout; 0 where there is none."""
        ...

    async def newest_cursor(self) -> int:
        """Newest cursor; 0 as long as no rollout has ended."""
        ...

    async def counts(
        self, namespace: str, pool: str | None = None, group: str | None = None
    ) -> dict[tuple[Stage, Status], int]:
        """Number of records by stage and status. A terminal record counts for the stage in which it ended."""
        ...

    async def queue_places(self, namespace: str, pool: str, now: float, limit: int) -> dict[int, int]:
        """Places in a pool's queue: seq -> number of records before it in its stage, for the first `limit` of each.

        Records in back-off at `now` are in no queue.
        """
        ...

    async def reward_mean(self, namespace: str, pool: str | None = None, group: str | None = None) -> float | None:
        """Mean over the records that have a reward; None if there are none."""
        ...

    # batches

    async def batch(self, key: BatchKey) -> tuple[BatchRecord, SeriesRecord | None] | None:
        """Return a batch with its series."""
        ...

    async def list_batches(self, namespace: str, limit: int) -> list[tuple[BatchRecord, SeriesRecord | None]]:
        """Return the newest batches, newest first."""
        ...

    async def running_batches(self) -> list[BatchRecord]:
        """Batches that have not ended, in order of arrival."""
        ...

    async def delivered_groups(self, key: BatchKey, after: int, limit: int) -> list[GroupRecord]:
        """Return the delivered groups after this delivery, in order."""
        ...

    async def dataset(self, namespace: str, name: str) -> DatasetRecord | None: ...

    async def list_datasets(self, namespace: str) -> list[DatasetRecord]: ...

    async def task_histories(self, namespace: str, dataset: str) -> list[TaskHistory]:
        """Return the histories of all tasks of a dataset that have one."""
        ...

    async def prune_rollouts(self, end_of_life: Callable[[PoolKey], float]) -> int:
        """Delete ended rollouts; return how many. The counts keep them.

        `end_of_life`: time (Unix seconds) before which a pool's rollouts must have ended.
        """
        ...

    async def prune_acknowledged(self, before: float) -> int:
        """Delete the rollouts of groups acknowledged before this time (Unix seconds); return how many."""
        ...

    async def reclaim_packs(self, kept_seconds: float) -> int:
        """Free the space of deleted results; return the bytes. A pack stays for `kept_seconds` after its last use."""
        ...

    async def read_blob(self, ref: BlobRef) -> bytes:
        """Read a blob and check its digest. Raises Unavailable when the blob is missing or damaged."""
        ...

    async def close(self) -> None: ...
