"""Protocol and records of a store.

The data that a call writes is on disk before the call returns. Waiting writes are committed together (group commit).
Each write has its own savepoint, so a failed write does not undo the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, overload

from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.kinds.batch import BatchKey
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutError, RolloutKey, Stage, Status, WeightsConstraint
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.server.store.batch_records import (
    BatchRecord,
    BatchTables,
    DatasetRecord,
    GroupRecord,
    SeriesRecord,
    TaskHistory,
)
from rollyard.wire.stored_session import SessionStore

T = TypeVar("T")
K = TypeVar("K", bound=KindObject)
L = TypeVar("L", bound=KindObject)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: KindObject
    """The object. For DELETED: the last state of the object, with the resourceVersion of the deletion."""


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Position of a blob in a pack (a file with many blobs). The blob is fsynced before the row that names it is
    committed."""

    pack: str
    offset: int
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """Snapshot of a rollout's sandbox. `blob`: the compressed archive; None if there is none."""

    about: RolloutSnapshot
    blob: BlobRef | None


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """A rollout's durable state. After the insert only `server.rollouts.step` changes a record. The store itself sets
    `cursor`, and changes `result` when it moves the blob to another pack."""

    namespace: str
    id: str
    digest: str
    """sha256 of the canonical request, its `n` and the sample index. It shows whether two request bodies are equal."""
    request: str
    """The accepted `RolloutRequest` as JSON, with n = 1."""
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
    """Stage of a leased or ended rollout; the stage with which a queued rollout will begin. When the node agent
    reports that RUN has begun, the store keeps INIT until the rollout's next event."""
    attempt: int = 1
    faults: int = 0
    """Number of infrastructure failures so far. Each uses up one of the pool's `maxAttempts`."""
    losses: int = 0
    """Number of lost leases. The count begins again at 0 when the result of RUN is stored. A lost lease uses up none of
    the pool's `maxAttempts`; the limit for lost leases is `step.MAX_LOSSES`."""
    fence: int = 0
    """Sequence number of the last lease. A message with a lower number is void."""
    holder: str | None = None
    """Node agent that holds the lease, as `<allocation uid>/<instance>`; None if the rollout is not leased."""
    node: str | None = None
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Role -> endpoint id. The endpoints are chosen when a lease is granted, and can change during the lease. A rollout
    that is queued again keeps its last endpoints, because their caches have the rollout's prefix. After an
    infrastructure failure it keeps none.
    """
    queued_at: float = 0.0
    not_before: float = 0.0
    """End of the back-off in Unix seconds. The rollout is not leased before this time."""
    queued_seconds: float = 0.0
    """Total time that the rollout has waited in the queue, without the present wait."""
    run: BlobRef | None = None
    """The stored `RunResult`; None before the end of RUN."""
    result: BlobRef | None = None
    """The stored `Outcome`; None before the rollout has ended, or if it ended without an outcome."""
    reward: float | None = None
    error: RolloutError | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Small numbers for lists: turns, tokens, tool_calls, and the timings by name."""
    finished_at: float | None = None
    cursor: int | None = None
    """Position among terminal records; the store sets it when the status becomes terminal."""
    min_weights_version: str | None = None
    """Oldest weights version with which the rollout may run."""
    weights: WeightsConstraint | None = None
    """Constraint on the weights after the rollout has begun, or None. When the pool's weights change, the server checks
    only the records with a constraint (`Transaction.version_bound`)."""
    weights_version: str | None = None
    """Version of the policy when the lease was granted. None after a requeue that repeats the sampling."""
    outdated: int = 0
    """Number of leases taken back because the weights no longer matched the request. Such a lease uses up none of the
    pool's `maxAttempts`; the limit for such leases is `step.MAX_OUTDATED`."""
    queue_rank: float = 0.0
    """Place in the queue among the rollouts of the same priority. Ranks grow within a batch. The ranks of the pool's
    batches are interleaved. All rollouts without a batch count as one more batch."""
    history: str = ""
    """Changes of the rollout so far, as lines of JSON. `server.rollouts.history` reads them."""
    image: str = ""
    """Sandbox image of the task in normal form; empty if the task names none, so that the pool's default image is used."""

    @property
    def key(self) -> RolloutKey:
        return RolloutKey(self.namespace, self.id)

    @property
    def pool_key(self) -> PoolKey:
        return PoolKey(self.namespace, self.pool)

    @property
    def leased(self) -> bool:
        return self.holder is not None


@dataclass(frozen=True, slots=True)
class ImageHold:
    """An image that a pool's node agents do not have now. The pool's queued rollouts of this image wait until `until`.
    Then one of them is granted and tries the image. If the image is there, the hold is deleted."""

    pool: PoolKey
    image: str
    message: str = ""
    """Sentence of the last failure; empty if the image has not failed."""
    permanent: bool = False
    """True: somebody must change the image or the pool."""
    registry_down: bool = False
    """True: the image waits for its registry, which does not answer."""
    failures: int = 0
    """Number of failures in a row."""
    since: float = 0.0
    """Time of the first failure in the row (Unix seconds); 0 before it."""
    until: float = 0.0
    """Unix seconds."""
    trying: bool = False
    """True: a node agent pulls the image now, or was asked to."""


def allocation_uid(holder: str | None) -> str:
    """Uid of the allocation in which a holder of a lease runs; empty if there is no holder."""
    return (holder or "").partition("/")[0]


class Transaction(Protocol):
    """Operations inside `Store.transact`. They run in the thread of the store's writer, and block no other thread."""

    @property
    def batches(self) -> BatchTables: ...

    def get(self, namespace: str, id: str) -> RolloutRecord | None: ...

    def put(self, record: RolloutRecord) -> RolloutRecord:
        """Insert or replace a record. Sets `seq`; for a terminal record also `cursor`.

        Raises Conflict if the stored record is already terminal.
        """
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
        losses_below: int | None = None,
        default_image: str | None = None,
        after: RolloutRecord | None = None,
    ) -> list[RolloutRecord]:
        """Records that wait for a lease in these pools. Records in back-off at `now` are left out.

        The order is: EVAL before INIT, then priority, then rank, then arrival. `kinds`: only these task kinds. `minima`:
        only records without a minimum version or with one of these minimum versions. `losses_below`: only records with
        fewer losses. `default_image`: only records whose image is not held at `now`; this is the image of the records
        that name none. None: all records. `after`: in each stage only records behind this record.
        """
        ...

    def queued_of_image(self, pool: PoolKey, image: str, created_before: float, limit: int) -> list[RolloutRecord]:
        """Records with this value of `image` that wait for INIT and were created before this time (Unix seconds)."""
        ...

    def image_holds(self, pool: PoolKey | None = None) -> list[ImageHold]:
        """Held images of one pool or of all."""
        ...

    def put_image_hold(self, hold: ImageHold) -> None: ...

    def delete_image_hold(self, pool: PoolKey, image: str) -> bool:
        """Return whether there was such a hold."""
        ...

    def queue_ranks(self, pool: PoolKey) -> QueueRanks: ...

    def put_queue_ranks(self, pool: PoolKey, ranks: QueueRanks) -> None: ...

    def held(self, holder: str | None = None) -> list[RolloutRecord]:
        """Leased records, of one holder or of all."""
        ...

    def version_bound(self, pool: PoolKey) -> list[VersionBound]:
        """Live records of this pool with a constraint on weights (`RolloutRecord.weights`)."""
        ...

    def group_versions(self, namespace: str, group: str) -> GroupVersions:
        """Versions from which the rollouts of a group were sampled or are being sampled."""
        ...

    def add_blob(self, data: bytes) -> BlobRef: ...

    def snapshots(self, record: RolloutRecord) -> list[StoredSnapshot]:
        """Snapshots of the rollout's present or last attempt, in the order of the turns."""
        ...

    def put_snapshot(self, record: RolloutRecord, snapshot: StoredSnapshot) -> None:
        """Insert or replace a snapshot of the rollout's present attempt. Those of earlier attempts are deleted."""
        ...


@dataclass(frozen=True, slots=True)
class QueueRanks:
    """Ranks of a pool's queue, as in start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).

    A rollout's rank is the rank of the rollout before it in the batch, plus 1 / weight of the batch. The first rollout
    after a pause has a rank after `served`, so that a batch gains no advantage by a pause.
    """

    served: float = 0.0
    """Greatest rank of the rollouts to which a lease was granted."""
    submitted: float = 0.0
    """Last rank of the rollouts without a batch."""

    def first(self, last: float, step: float = 1.0) -> float:
        """Return the next rank of a batch whose last rank was `last`. `step`: distance between the batch's ranks."""
        return max(self.served, last) + step


@dataclass(frozen=True, slots=True)
class VersionBound:
    """Fields of a record that decide whether the rollout's weights still match its request."""

    id: str
    group: str | None
    stage: Stage
    leased: bool
    endpoints: Mapping[str, str]
    weights: WeightsConstraint
    weights_version: str | None


@dataclass(frozen=True, slots=True)
class GroupVersions:
    """Versions of a group's rollouts. Rollouts that ended `Cancelled` or `InfraFailed` do not count."""

    sampled: frozenset[str] = frozenset()
    """Versions of rollouts that are at EVAL or have ended. All tokens of these rollouts are sampled."""
    begun: frozenset[str] = frozenset()
    """Versions of the other rollouts, which are still being sampled."""

    @property
    def fixed(self) -> str | None:
        """Version to which the group is bound; None before the group's first rollout begins."""
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
    """Sequence number of this opening of the store. It grows with each opening. Writes with an older number are refused."""
    server_id: str
    """Random id of the store, which never changes. It distinguishes our jobs from the jobs of another server."""

    @property
    def sessions(self) -> SessionStore:
        """Sessions of external agents."""
        ...

    # objects

    async def create(self, obj: K) -> K:
        """Store a new object. The store sets its uid, generation (1), resourceVersion and creationTimestamp. Raises
        AlreadyExists."""
        ...

    @overload
    async def get(self, key: ObjectKey) -> KindObject: ...
    @overload
    async def get(self, key: ObjectKey, kind: type[K]) -> K: ...
    @overload
    async def get(self, key: ObjectKey, kind: tuple[type[K], type[L]]) -> K | L:
        """Return the object. `kind`: one or two classes that the caller expects, as for isinstance.

        Raises NotFound with kubectl's text, and TypeError if the object has another class.
        """
        ...

    async def list_objects(self, kind: str, namespace: str | None = None) -> tuple[list[KindObject], str]:
        """All objects of a kind, in order of namespace and name, and the resourceVersion from which to watch."""
        ...

    async def update(self, obj: K, part: Literal["spec", "status"]) -> K:
        """Write the spec with the metadata (labels, annotations, finalizers, owner references), or only the status.

        The generation grows if the spec changes. An update without changes is not written. An object that is being
        deleted disappears with its last finalizer.

        Raises NotFound; Conflict if a given resourceVersion or uid is not the current one; Invalid for a new finalizer on
        an object that is being deleted; MethodNotAllowed if the kind has no status.
        """
        ...

    async def delete(self, key: ObjectKey, *, uid: str | None = None) -> KindObject:
        """Remove the object, or set its deletionTimestamp if it has finalizers. Return the object's last state.

        Raises NotFound, and Conflict if the object has another uid.
        """
        ...

    async def prune_events(self, older_than: float) -> int:
        """Delete the Events that last occurred before `older_than` (Unix seconds); return how many."""
        ...

    def watch(self, kind: str | None, since: str) -> AsyncIterator[WatchEvent]:
        """Iterate over every change after `since`, in order and without a gap.

        `kind`: only changes of this kind; None for all kinds. A caller may cancel its wait for the next change and wait
        again; no change is lost.

        Raises BadRequest if `since` is no resourceVersion. Raises Expired if the changes after `since` are no longer
        kept, or if `since` is newer than the last change. Raises Unavailable if the store is closed. The iterator can
        raise Expired and Unavailable as well.
        """
        ...

    # rollouts

    async def transact(self, change: Callable[[Transaction], T]) -> T:
        """Run `change` in the writer; return its result after its writes are on disk.

        An exception of `change` undoes all writes of `change`, and only this caller gets the exception. Raises
        Unavailable if the disk is full or fails, or if the store is closed, and Superseded if another server has the
        data folder. Nothing is written then.
        """
        ...

    async def get_rollout(self, namespace: str, id: str) -> RolloutRecord | None: ...

    async def snapshots(self, record: RolloutRecord) -> list[StoredSnapshot]:
        """Snapshots of the rollout's present or last attempt, in the order of the turns."""
        ...

    async def list_rollouts(self, filter: RolloutFilter) -> list[RolloutRecord]:
        """Records in order of arrival."""
        ...

    async def finished(
        self, after: int, limit: int, namespace: str | None = None, group: str | None = None
    ) -> list[RolloutRecord]:
        """Terminal records after this cursor, in order of the cursor."""
        ...

    async def newest_seq(self) -> int:
        """Return the seq of the newest rollout; 0 if there is no rollout."""
        ...

    async def newest_cursor(self) -> int:
        """Return the greatest cursor; 0 if no rollout has ended."""
        ...

    async def counts(
        self, namespace: str, pool: str | None = None, group: str | None = None
    ) -> dict[tuple[Stage, Status], int]:
        """Number of records by stage and status. A terminal record counts for the stage in which the rollout ended."""
        ...

    async def queue_places(
        self, namespace: str, pool: str, now: float, limit: int, default_image: str = ""
    ) -> dict[Stage, dict[int, int]]:
        """Places in a pool's queue: stage -> seq of a record -> number of records of this stage before this record.

        Each stage has at most `limit` places. Records in back-off at `now`, and records whose image is held at `now`, do
        not count. `default_image`: image of the records that name none.
        """
        ...

    async def image_holds(self, pool: PoolKey) -> list[ImageHold]:
        """Held images of a pool, in order of their names."""
        ...

    async def queued_images(self, pool: PoolKey, default_image: str, now: float, limit: int) -> dict[str, int]:
        """Images of the first `limit` rollouts that can be granted and wait for INIT, with the number of these rollouts. The
        images are in the order of the queue. Held images are left out."""
        ...

    async def count_held(self, pool: PoolKey, default_image: str, now: float) -> int:
        """Number of rollouts that wait for INIT and cannot be granted now because of their images. If an image may be tried
        at `now`, one of its rollouts can be granted."""
        ...

    async def images_needed(self) -> set[str]:
        """Return the images that unfinished rollouts and the tasks of running batches name, in normal form. Reads all
        these tasks."""
        ...

    async def count_queued(self, pool: PoolKey) -> int:
        """Number of queued rollouts of a pool, without the rollouts of batches. Reads the whole queue."""
        ...

    async def reward_mean(self, namespace: str, pool: str | None = None, group: str | None = None) -> float | None:
        """Mean of the rewards; None if no record has a reward, or if the mean is not finite."""
        ...

    # batches

    async def batch(self, key: BatchKey) -> tuple[BatchRecord, SeriesRecord | None] | None:
        """Return a batch and its series; None if there is no such batch."""
        ...

    async def list_batches(self, namespace: str, limit: int) -> list[tuple[BatchRecord, SeriesRecord | None]]:
        """Return the last `limit` batches, each with its series, newest first."""
        ...

    async def running_batches(self) -> list[BatchRecord]:
        """Batches that have not ended, in order of arrival."""
        ...

    async def delivered_groups(self, key: BatchKey, after: int, limit: int) -> list[GroupRecord]:
        """Return the batch's groups whose delivery number is greater than `after`, in order."""
        ...

    async def dataset(self, namespace: str, name: str) -> DatasetRecord | None: ...

    async def list_datasets(self, namespace: str) -> list[DatasetRecord]: ...

    async def task_histories(self, namespace: str, dataset: str) -> list[TaskHistory]:
        """Return the histories of a dataset's tasks. Tasks without a history are left out."""
        ...

    async def prune_rollouts(self, end_of_life: Callable[[PoolKey], float]) -> int:
        """Delete old rollouts; return how many. `counts` without a group still includes the deleted rollouts.

        `end_of_life`: function that returns a time for a pool (Unix seconds). The pool's rollouts that ended before this
        time are deleted. The rollouts of groups that a batch has delivered or may still deliver stay. `prune_batches`
        and `prune_acknowledged` delete those of delivered groups.
        """
        ...

    async def prune_acknowledged(self, before: float) -> int:
        """Delete the groups that were acknowledged before this time (Unix seconds), with their rollouts; return the
        number of deleted rollouts."""
        ...

    async def prune_batches(self, end_of_life: Callable[[PoolKey], float]) -> int:
        """Delete the batches that ended before the time that `end_of_life` returns for their pool, with their delivered
        groups; return the number of deleted rollouts. `end_of_life`: as in `prune_rollouts`.

        A series that only the deleted batch can use is deleted, with the tasks that no other series or dataset uses.
        """
        ...

    async def reclaim_packs(self, kept_seconds: float) -> int:
        """Free the space of deleted results; return the number of bytes freed.

        A pack is kept for `kept_seconds` after it was found unused.
        """
        ...

    async def read_blob(self, ref: BlobRef) -> bytes:
        """Read a blob and check its digest. Raises Unavailable if the blob is missing or damaged."""
        ...

    async def use_blobs(self, refs: Sequence[BlobRef], use: Callable[[list[bytes]], T]) -> T:
        """Read blobs as `read_blob` does; return `use(blobs)`. Both run in one thread, because each further hop from
        thread to thread would take as long as the reading of a small blob."""
        ...

    async def close(self) -> None: ...
