"""The batches service: creates, acknowledges and cancels batches, and returns their groups.

In memory the service has only waiting callers and present errors of plug-ins; all other state is in the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rollyard.core.aio import wait_or_timeout
from rollyard.core.clock import Clock
from rollyard.core.errors import Cause, Conflict, Expired, Invalid, NotFound, TooManyRequests, Unavailable
from rollyard.kinds.base import evolve
from rollyard.kinds.batch import BatchKey, BatchRequest, BatchView, SourceRef
from rollyard.kinds.pool import PoolKey
from rollyard.server.batches.advance import Acknowledged, BatchCancelled, BatchEvent, Ticked
from rollyard.server.batches.batch_view import view
from rollyard.server.batches.draw import with_end
from rollyard.server.batches.settlement import Settlements, parsed_request
from rollyard.server.batches.task_lines import digest_of, source_digest
from rollyard.server.batches.task_sources import TaskSources
from rollyard.server.rollouts.record_changes import RecordChanges
from rollyard.server.rollouts.service import RolloutService
from rollyard.store.base import RolloutFilter, RolloutRecord
from rollyard.store.batch_records import BatchRecord, DatasetRecord, GroupRecord, SeriesRecord
from rollyard.store.batch_store import BatchStore
from rollyard.store.batch_transaction import BatchTransaction
from rollyard.store.rollout_transaction import Transaction

TASKS_A_WRITE = 2000
MAX_RUNNING = 1000
RETRY_SECONDS = 10
READ_AHEAD = 256
"""Tasks of a plug-in are stored in advance, before they are drawn: about this many, or more by READ_AHEAD_GROUPS."""
READ_AHEAD_GROUPS = 4
"""About this many tasks are stored in advance for each group in flight, if this gives more than READ_AHEAD."""
MAX_REQUEST_BYTES = 256 << 10
"""Greatest size of a batch's request without its tasks. The request without its tasks must fit, together with one task,
into a rollout's request."""


class BatchService:
    """All batches of one server."""

    def __init__(
        self,
        store: BatchStore,
        clock: Clock,
        rollouts: RolloutService,
        settlements: Settlements,
        slots: Callable[[PoolKey], int],
        sources: TaskSources,
    ) -> None:
        """`slots`: returns the number of rollouts that the node agents of a pool can work on at once."""
        self._store = store
        self._clock = clock
        self._rollouts = rollouts
        self._settlements = settlements
        self._slots = slots
        self._sources = sources
        self.source_errors: dict[BatchKey, str] = {}
        """Errors of plug-ins, for batches whose source fails at present."""
        self._changed: dict[BatchKey, asyncio.Event] = {}

    # batches

    async def create(
        self, namespace: str, request: BatchRequest, tasks: Sequence[str], *, engine_priority: bool = False
    ) -> tuple[BatchView, bool]:
        """Accept a batch, or find the one with this id. Return the batch once it is on disk, and whether it is new.

        `tasks`: the request's own tasks as canonical JSON. `engine_priority`: whether the pool's engines take requests
        in order of their priority. Raises Conflict, Invalid, TooManyRequests, Unavailable.
        """
        id = request.id or f"b-{secrets.token_hex(6)}"
        record = replace(self._record(namespace, id, request, tasks), engine_priority=engine_priority)
        digest, count = digest_of(tasks), len(tasks) or None
        if request.tasks is not None and await self._store.batch_with_series(record.key) is None:
            await self._store_tasks(digest, tasks)
        if request.source is not None:
            digest, count = source_digest(request.source), await self.read_ahead(request.source, 0, READ_AHEAD)
        now, slots = self._clock.time(), self._slots(PoolKey(namespace, request.pool))

        def change(tx: Transaction, changes: RecordChanges) -> bool:
            if (there := tx.batches.batch(record.key)) is not None:
                if there.digest != record.digest:
                    raise Conflict(
                        f"batch {id!r} exists with another body; choose another id, or send the same body as before"
                    )
                return False
            if len(tx.batches.running()) >= MAX_RUNNING:
                raise TooManyRequests(
                    f"{MAX_RUNNING} batches are running, which is the limit of this server; cancel some, or wait until one "
                    "has ended",
                    retry_after=RETRY_SECONDS,
                )
            settlement = self._settlements.begin(tx, changes, now)
            series = _series(tx, namespace, record.series, request, digest, count)
            _check_tasks_stored(tx.batches, series.digest, series.tasks)
            key = settlement.begin(record, series)
            settlement.advance(key, Ticked(now, slots))
            settlement.write()
            return True

        new = await self._rollouts.transact(change)
        return await self.view(record.key), new

    def _record(self, namespace: str, id: str, request: BatchRequest, tasks: Sequence[str]) -> BatchRecord:
        bare = evolve(request, id=None, tasks=request.tasks and request.tasks[:1])
        # Default values are left out, so that a field of a later release does not change the digest of an equal
        # request.
        text = evolve(bare, tasks=None).model_dump_json(exclude_defaults=True)
        if (size := len(text.encode())) > MAX_REQUEST_BYTES:
            raise Invalid(
                f"a batch may have at most {MAX_REQUEST_BYTES} bytes besides its tasks, but this one has {size}; "
                "put large data into the image"
            )
        return BatchRecord(
            namespace=namespace,
            id=id,
            digest=hashlib.sha256("\n".join([text, *tasks]).encode()).hexdigest(),
            request=bare.model_dump_json(),
            pool=request.pool,
            series=request.series or (request.dataset.name if request.dataset is not None else id),
            created_at=self._clock.time(),
        )

    async def view(self, key: BatchKey) -> BatchView:
        """Return a batch. Raises NotFound."""
        found = await self._store.batch_with_series(key)
        if found is None:
            raise NotFound(f"batch {key.id!r} not found in namespace {key.namespace!r}")
        means = await self._store.reward_means(key.namespace, [key.id])
        return self._view(*found, means.get(key.id))

    async def views(self, namespace: str, limit: int, series: str | None = None) -> list[BatchView]:
        """Return the newest batches, newest first. `series`: only those of this series."""
        found = await self._store.list_batches(namespace, limit, series)
        means = await self._store.reward_means(namespace, [batch.id for batch, _ in found])
        return [self._view(batch, series, means.get(batch.id)) for batch, series in found]

    def _view(self, batch: BatchRecord, series: SeriesRecord | None, reward_mean: float | None) -> BatchView:
        found = view(batch, series, parsed_request(batch.request), self.source_errors.get(batch.key))
        return evolve(found, reward_mean=reward_mean)

    async def acknowledge(self, key: BatchKey, upto: int) -> BatchView:
        """Record that the trainer has used all groups up to this delivery. Raises NotFound, Invalid."""
        now = self._clock.time()

        def before(tx: Transaction, batch: BatchRecord) -> None:
            if upto > batch.delivered:
                message = f"batch {key.id!r} has delivered {batch.delivered} groups; acknowledge at most that many"
                raise Invalid(message, causes=[Cause("upto", message)])
            tx.batches.note_acknowledged(key, batch.acknowledged, upto, now)

        return await self._apply(key, Acknowledged(now, upto), before)

    async def cancel(self, key: BatchKey, *, keep: bool) -> BatchView:
        """End a batch. A batch that has ended stays as it is. `keep`: carry its live groups over, if the
        request allows this. Raises NotFound."""
        return await self._apply(key, BatchCancelled(self._clock.time(), keep))

    async def tick(self, key: BatchKey, slots: int) -> None:
        """Send a batch the time and its slots."""
        await self._apply(key, Ticked(self._clock.time(), slots))

    async def _apply(
        self,
        key: BatchKey,
        event: BatchEvent,
        before: Callable[[Transaction, BatchRecord], None] = lambda tx, batch: None,
    ) -> BatchView:
        now = self._clock.time()

        def change(tx: Transaction, changes: RecordChanges) -> None:
            settlement = self._settlements.begin(tx, changes, now)
            batch = settlement.batch(key)
            if batch is None:
                raise NotFound(f"batch {key.id!r} not found in namespace {key.namespace!r}")
            before(tx, batch)
            settlement.advance(key, event)
            settlement.write()

        await self._rollouts.transact(change)
        return await self.view(key)

    async def feed(self, key: BatchKey) -> None:
        """Read and store tasks of a batch's plug-in before they are drawn. Raises Invalid if the plug-in fails."""
        batch, series = await self._store.batch_with_series(key) or (None, None)
        if batch is None or series is None:
            return
        source = parsed_request(batch.request).source
        if source is None or series.tasks is not None:
            return
        goal = series.position + max(READ_AHEAD, READ_AHEAD_GROUPS * batch.in_flight)
        count = await self.read_ahead(source, series.position, goal)
        if count is not None:
            await self._rollouts.transact(lambda tx, changes: _end_source(tx, series, count))

    async def read_ahead(self, source: SourceRef, position: int, goal: int) -> int | None:
        """Store a plug-in's tasks until `goal` tasks are stored. Do nothing if half of the tasks from `position` to `goal`
        are stored already.

        Return the plug-in's number of tasks if the plug-in has no more tasks; otherwise None. Raises Invalid.
        """
        digest = source_digest(source)
        stored = await self._store.transact(lambda tables: tables.stored_tasks(digest))
        if stored - position >= (goal - position) // 2:
            return None
        tasks, ended = await self._sources.read(source, stored, goal - stored)
        await self._store.transact(lambda tables: tables.add_tasks(digest, stored, tasks))
        if ended and stored + len(tasks) == 0:
            message = f"task source {source.name!r} has no task; change its options"
            raise Invalid(message, causes=[Cause("source", message)])
        return stored + len(tasks) if ended else None

    # groups

    async def groups(self, key: BatchKey, after: int, limit: int, wait: float) -> tuple[list[GroupRecord], BatchView]:
        """Return the first `limit` groups whose delivery number is greater than `after`, and the batch.

        Wait until there is such a group or the batch will deliver no more groups, but at most for `wait` seconds.

        Raises NotFound, and Expired if the next delivery is deleted.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            changed = self._changed.setdefault(key, asyncio.Event())  # before the read, so that no change is missed
            try:
                now = await self.view(key)
            except NotFound:
                self._changed.pop(key, None)
                raise
            found = await self._store.delivered(key, after, limit)
            first = found[0].delivery or 0 if found else now.delivered + 1
            if first > after + 1:
                raise Expired(
                    f"delivery {after + 1} of batch {key.id!r} is deleted: it was acknowledged, or the pool's "
                    f"ttlSecondsAfterFinished has passed; read the groups after {first - 1}"
                )
            if found or now.all_delivered or loop.time() >= deadline:
                if now.status.terminal:
                    self.notify(key)  # nothing else will wake the waiting callers
                return found, now
            await wait_or_timeout(changed, deadline - loop.time())

    async def rollouts_of(self, group: GroupRecord) -> list[RolloutRecord]:
        """Return the records of a group's rollouts, sorted by sample index."""
        found = await self._rollouts.find(RolloutFilter(namespace=group.namespace, group=group.id, limit=group.n))
        return sorted(found, key=lambda record: record.sample_index)

    def notify(self, key: BatchKey) -> None:
        """Wake the callers that wait for this batch."""
        if (event := self._changed.pop(key, None)) is not None:
            event.set()

    # datasets

    async def put_dataset(
        self, namespace: str, name: str, tasks: Sequence[str], kinds: Collection[str]
    ) -> tuple[DatasetRecord, bool]:
        """Store a dataset; return the dataset, and whether it is new.

        `tasks`: tasks as canonical JSON. `kinds`: kinds of the tasks. Raises Conflict if a dataset of this name has
        other tasks. Raises Unavailable if equal tasks are being deleted.
        """
        record = DatasetRecord(namespace, name, digest_of(tasks), len(tasks), tuple(sorted(kinds)), self._clock.time())
        await self._store_tasks(record.digest, tasks)

        def change(tables: BatchTransaction) -> tuple[DatasetRecord, bool]:
            there = tables.dataset(namespace, name)
            if there is None:
                _check_tasks_stored(tables, record.digest, record.tasks)
                tables.put_dataset(record)
                return record, True
            if there.digest != record.digest:
                raise Conflict(
                    f"dataset {name!r} exists with other tasks ({there.tasks}, sha256 {there.digest[:12]}…); choose another "
                    f"name, or delete it first: rollyard datasets delete {name}"
                )
            return there, False

        return await self._store.transact(change)

    async def delete_dataset(self, namespace: str, name: str) -> None:
        """Delete a dataset with its history and its series. Groups of these series that wait for a later batch are
        cancelled. Raises NotFound, and Conflict if a running batch draws from the dataset."""
        now = self._clock.time()

        def change(tx: Transaction, changes: RecordChanges) -> None:
            if tx.batches.dataset(namespace, name) is None:
                raise NotFound(f"dataset {name!r} not found in namespace {namespace!r}")
            for batch in tx.batches.running():
                series = tx.batches.series(batch.namespace, batch.series)
                if batch.namespace == namespace and series is not None and series.dataset == name:
                    raise Conflict(
                        f"batch {batch.id!r} draws from dataset {name!r}; cancel it first: "
                        f"rollyard batches cancel {batch.id}"
                    )
            settlement = self._settlements.begin(tx, changes, now)
            settlement.drop_carried(namespace, name)
            settlement.write()
            tx.batches.delete_dataset(namespace, name)

        await self._rollouts.transact(change)

    async def _store_tasks(self, digest: str, tasks: Sequence[str]) -> None:
        """Store tasks in portions, so that other writes can run in between. No task is used before a record with the
        digest exists."""
        for start in range(0, len(tasks), TASKS_A_WRITE):
            portion = tasks[start : start + TASKS_A_WRITE]
            await self._store.transact(
                lambda tables, start=start, portion=portion: tables.add_tasks(digest, start, portion)  # type: ignore[misc]
            )


def _check_tasks_stored(tables: BatchTransaction, digest: str, tasks: int | None) -> None:
    """Raise Unavailable if these tasks are no longer stored. Several batches with equal tasks share one stored
    copy, so the deletion of an old batch may just have deleted the copy."""
    if tasks is not None and tables.stored_tasks(digest) < tasks:
        raise Unavailable("equal tasks of an old batch are being deleted; send the same body again", retry_after=1)


def _end_source(tx: Transaction, series: SeriesRecord, tasks: int) -> None:
    now = tx.batches.series(series.namespace, series.name)
    if now is not None and now.tasks is None:
        tx.batches.put_series(with_end(now, tasks))


def _series(
    tx: Transaction, namespace: str, name: str, request: BatchRequest, digest: str, tasks: int | None
) -> SeriesRecord:
    """Return the series of a new batch; a new series if this batch is its first. Raises Invalid, Conflict."""
    dataset, seed = None, None
    if request.dataset is not None:
        found = tx.batches.dataset(namespace, request.dataset.name)
        if found is None:
            message = (
                f"there is no dataset {request.dataset.name!r} in namespace {namespace!r}; upload it first: "
                f"rollyard datasets put {request.dataset.name} FILE"
            )
            raise Invalid(message, causes=[Cause("dataset.name", message)])
        digest, dataset, seed, tasks = found.digest, found.name, request.dataset.seed, found.tasks
    new = SeriesRecord(namespace, name, digest, dataset, seed, tasks)
    there = tx.batches.series(namespace, name)
    if there is None:
        return new
    if (there.digest, there.dataset, there.seed) != (digest, dataset, seed):
        message = (
            f"series {name!r} draws from another source or with another seed; give `series` another name to start again, "
            "or send the source and seed of the series to go on"
        )
        raise Conflict(message, causes=[Cause("series", message)])
    return there
