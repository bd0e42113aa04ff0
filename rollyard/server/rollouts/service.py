"""The rollouts service: accepts rollouts, takes leases back, ends rollouts, and informs waiting callers.

Rollouts are in the store. The service itself keeps the leases' expiry times, completion rates and waiting callers. It is one
file, because each end of a rollout changes all three.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from rollyard.core.aio import Signal
from rollyard.core.clock import Clock
from rollyard.core.errors import ApiError, Fenced, Invalid, NotFound, TooLarge
from rollyard.core.failpoints import failpoint
from rollyard.core.telemetry import (
    ATTEMPTS_FAULTED,
    LEASES_LOST,
    RESUME_SNAPSHOT_BYTES,
    RESUME_SNAPSHOT_SECONDS,
    ROLLOUTS_OUTDATED,
)
from rollyard.kinds.failure_table import ENDINGS, NODE_AGENT_ERROR, Again, Ending
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutKey, RolloutRequest, Stage, Status
from rollyard.kinds.rollout_history import HistoryEvent, RolloutHistory
from rollyard.kinds.rollout_pool import DEFAULT_MAX_ATTEMPTS, POLICY_ROLE
from rollyard.kinds.top import MissingImageView
from rollyard.server.rollouts.completion_rate import CompletionRate
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.server.rollouts.history import history_of
from rollyard.server.rollouts.lease_reports import (
    Report,
    held_record,
    put_snapshot,
    result_report,
    run_report,
)
from rollyard.server.rollouts.leases import Leases, LiveLease
from rollyard.server.rollouts.missing_image import is_tried, next_try
from rollyard.server.rollouts.new_rollouts import accept, expand
from rollyard.server.rollouts.record_changes import RecordChanges, with_reported_stage
from rollyard.server.rollouts.results import Upload
from rollyard.server.rollouts.rollout_ends import RolloutEnds
from rollyard.server.rollouts.saved_turns import TurnsUpload, count, put_resume_snapshot, turns_report
from rollyard.server.rollouts.step import (
    Cancelled,
    Effect,
    Ended,
    EndpointMoved,
    Event,
    Finished,
    LookedInto,
    Lost,
    Outdated,
    Requeued,
    StopHolder,
)
from rollyard.server.routing.staleness import StalenessVerdict
from rollyard.store.base import (
    GroupVersions,
    RolloutFilter,
    RolloutRecord,
    VersionBound,
    allocation_uid,
)
from rollyard.store.rollout_store import RolloutStore
from rollyard.store.rollout_transaction import Transaction
from rollyard.wire.node import Cancel, LeaseRef, ResultHeader, SnapshotHeader

log = logging.getLogger(__name__)

T = TypeVar("T")

FAULT_REASONS = frozenset(row.reason for row in ENDINGS.values() if row.again is Again.COUNTED)
"""Reasons that the metric of faults has; all others are `Other`."""
SMALL_SUBMIT = 8
"""Greatest number of rollouts that a submit expands on the event loop. A larger submit takes longer, and uses a thread."""
StalenessCheck = Callable[[VersionBound, GroupVersions], StalenessVerdict | None]
SettleGroups = Callable[[Transaction, RecordChanges, float], None]
"""Function that updates groups and batches after rollouts have ended. The last argument is the present time (Unix
seconds)."""


class RolloutService:
    """All rollouts of one server."""

    def __init__(
        self,
        store: RolloutStore,
        clock: Clock,
        node_agents: ConnectedNodeAgents,
        leases: Leases,
        settle_groups: SettleGroups,
        max_attempts: Callable[[PoolKey], Awaitable[int]],
    ) -> None:
        """`settle_groups` is called at the end of each transaction that `transact` runs. `max_attempts`: returns a pool's
        limit of attempts."""
        self._store = store
        self._clock = clock
        self._node_agents = node_agents
        self.leases = leases
        self.completion_rate = CompletionRate(clock)
        self._settle_groups = settle_groups
        self._max_attempts = max_attempts
        self.rollout_queued = Signal[[PoolKey, float]]()
        """Signal: this pool has a queued rollout that can be leased from this time on (Unix seconds)."""
        self.ends = RolloutEnds(store, self.get)

    async def recover(self) -> None:
        """Load the leases after a restart. Each lease in the store gets one full period to be renewed."""
        for record in await self._store.transact(lambda tx: tx.held()):
            self.leases.add(record)

    # clients

    async def submit(self, namespace: str, requests: Sequence[RolloutRequest]) -> list[tuple[RolloutRecord, bool]]:
        """Accept all requests or none. Return pairs (stored record, whether it is new). Raises Conflict, Invalid."""
        now = self._clock.time()
        warm = [await self._endpoints_of_parent(namespace, request) for request in requests]

        def expanded() -> list[RolloutRecord]:
            pairs = zip(requests, warm, strict=True)
            return [record for one, endpoints in pairs for record in expand(namespace, one, now, endpoints)]

        few = sum(request.n for request in requests) <= SMALL_SUBMIT
        records = expanded() if few else await asyncio.to_thread(expanded)
        accepted = await self._store.transact(lambda tx: accept(tx, records))
        for pool in {r.pool_key for r, new in accepted if new}:
            self.rollout_queued.emit(pool, now)
        return accepted

    async def _endpoints_of_parent(self, namespace: str, request: RolloutRequest) -> Mapping[str, str]:
        """Return the endpoints of the rollout from which a request goes on. Their caches may have its prompt."""
        if request.agent.fork_from is None:
            return {}
        parent = await self._store.get(namespace, request.agent.fork_from.rollout)
        return parent.endpoints if parent is not None else {}

    async def get(self, namespace: str, id: str) -> RolloutRecord:
        record = await self._store.get(namespace, id)
        if record is None:
            raise NotFound(f"rollout {id!r} not found in namespace {namespace!r}")
        return record

    async def history(self, namespace: str, id: str) -> RolloutHistory:
        """Return a rollout's history, with the stage that its holder last reported. Raises NotFound."""
        return history_of(with_reported_stage(await self.get(namespace, id), self.leases.run_begun))

    async def find(self, filter: RolloutFilter) -> list[RolloutRecord]:
        return await self._store.list_rollouts(filter)

    async def cancel(self, namespace: str, id: str) -> RolloutRecord:
        """End the rollout immediately, in any stage. An ended rollout does not change. Raises NotFound."""
        await self._apply_events([(RolloutKey(namespace, id), Cancelled(self._clock.time()))])
        return await self.get(namespace, id)

    async def cancel_matching(self, filter: RolloutFilter) -> int:
        """End the present rollouts that match, in several transactions; return how many matched.

        Rollouts that are submitted meanwhile are not ended.
        """
        last = await self._store.newest_seq()
        total = 0
        while found := await self._store.list_rollouts(filter):
            chosen = [record for record in found if record.seq <= last]
            event = Cancelled(self._clock.time())
            await self._apply_events([(r.key, event) for r in chosen])
            total += len(chosen)
            if len(chosen) < len(found):
                break
            filter = replace(filter, after_seq=found[-1].seq)
        return total

    async def cancel_queued(self, pool: PoolKey, why: Ending, message: str) -> int:
        """End all rollouts in a pool's queue, in several transactions; return how many ended."""
        now, stages = self._clock.time(), (Stage.INIT, Stage.EVAL)

        def pick(tx: Transaction) -> list[tuple[RolloutRecord, Event]]:
            queued = tx.queued([pool], stages, float("inf"), 500)
            return [(record, Cancelled(now, why, message)) for record in queued]

        total = 0
        while ended := await self._step_records(pick):
            total += len(ended)
        return total

    async def note_look(self, key: RolloutKey, fence: int, how: HistoryEvent, who: str, what: str) -> None:
        """Record in the rollout's history that somebody looks into its sandbox. Raises Fenced if the lease with this fence
        is void, and NotFound."""
        await self._apply_events([(key, LookedInto(self._clock.time(), fence, how, who, what))])

    # node agents

    async def store_runs(self, runs: Sequence[Upload], holder_uid: str) -> list[ApiError | None]:
        """Record in one transaction that RUN of these rollouts is done. `runs`: uploads with tokens and artifact. Return for
        each the error, or None. A repeated call has no effect."""
        now = self._clock.time()
        return await self._step_each([run_report(run, holder_uid, now) for run in runs])

    async def store_turns(self, uploads: Sequence[TurnsUpload], holder_uid: str) -> list[ApiError | None]:
        """Store turns of RUN, in one transaction. Return for each upload the error, or None. A repeated call has no effect."""
        now = self._clock.time()
        errors = await self._step_each([turns_report(upload, holder_uid, now) for upload in uploads])
        failpoint("after-turns-commit")
        for upload, error in zip(uploads, errors, strict=True):
            if error is None:
                count(upload.header.resumed, len(upload.bodies))
        return errors

    async def store_snapshot(self, header: SnapshotHeader, holder_uid: str, archive: bytes) -> None:
        """Store a snapshot of the holder's sandbox. A repeated call replaces it. Raises Fenced, Invalid, and TooLarge if the
        rollout's or the pool's snapshots become too many bytes."""
        now, put = self._clock.time(), put_resume_snapshot if header.resume else put_snapshot
        await self.transact(lambda tx, changes: put(tx, changes, header, holder_uid, archive, now))
        if header.resume:
            failpoint("after-snapshot-commit")
            RESUME_SNAPSHOT_BYTES.inc(len(archive))
            RESUME_SNAPSHOT_SECONDS.inc(header.seconds)

    async def finish_all(
        self, results: Sequence[tuple[ResultHeader, bytes | None]], holder_uid: str
    ) -> list[ApiError | None]:
        """Store several results from one node agent in one transaction. Return for each result the error, or None.

        `results`: for each result the header and the tokens (None: RUN has stored them).
        """
        now, most = self._clock.time(), [await self._attempts(header.lease) for header, _ in results]
        return await self._step_each(
            [result_report(*result, holder_uid, limit, now) for result, limit in zip(results, most, strict=True)]
        )

    async def fail(self, ref: LeaseRef, holder_uid: str, message: str) -> None:
        """Record that the rollout caused an error in the node agent's code. This uses up one of its attempts. Raises
        Fenced."""
        row, most = NODE_AGENT_ERROR, await self._attempts(ref)
        error = row.error(ref.stage, message or "it caused an error in the code of the node agent")
        fault = Finished(self._clock.time(), ref.fence, row.status, None, error, None, most, 0)
        await self._step_records(lambda tx: [(held_record(tx, ref, holder_uid), fault)])

    async def _attempts(self, ref: LeaseRef) -> int:
        """Return the greatest number of attempts of a leased rollout. A void lease uses up none."""
        lease = self.leases.get(ref.rollout)
        return await self._max_attempts(lease.pool) if lease is not None else DEFAULT_MAX_ATTEMPTS

    async def hand_back(self, ref: LeaseRef, holder_uid: str, reason: str, *, handed_back: bool) -> None:
        """Take back a lease from its holder, as `lose`. Raises Fenced if another allocation holds it."""
        lease = self.leases.get(ref.rollout)
        if lease is not None and allocation_uid(lease.holder) != holder_uid:
            raise Fenced(f"rollout {ref.id} belongs to another allocation")
        await self.lose(ref, reason, handed_back=handed_back)

    async def lose(self, ref: LeaseRef, reason: str, *, handed_back: bool = False, blameless: bool = False) -> None:
        """Take back a lease that has no result. If the lease is void, the record does not change. `handed_back`, `blameless`:
        as in `Lost`. Raises NotFound."""
        event = Lost(self._clock.time(), ref.fence, reason, handed_back, blameless)
        try:
            await self._apply_events([(ref.rollout, event)])
            LEASES_LOST.labels(reason if reason in ("Expired", "NotReceived") else "HandedBack").inc()
        except Fenced:
            self._stop_void_holder(ref)

    async def enforce_staleness(self, pool: PoolKey, check: StalenessCheck) -> int:
        """Requeue or end the rollouts for which `check` returns a verdict; return their number.

        `check` is called for each rollout of the pool that depends on weights versions.
        """
        now = self._clock.time()

        def pick(tx: Transaction) -> list[tuple[RolloutRecord, Event]]:
            found: list[tuple[RolloutRecord, Event]] = []
            for demanding in tx.version_bound(pool):
                alone = demanding.group is None or not demanding.weights.same
                group = GroupVersions() if alone else tx.group_versions(pool.namespace, str(demanding.group))
                verdict = check(demanding, group)
                record = tx.get(pool.namespace, demanding.id) if verdict is not None else None
                if verdict is not None and record is not None:
                    found.append((record, _event(record, verdict, now)))
            return found

        changed = await self._step_records(pick)
        for record in changed:
            ROLLOUTS_OUTDATED.labels("Ended" if record.status.terminal else "BegunAnew").inc()
        return len(changed)

    async def lose_missing(self, holder: str, held: Sequence[LeaseRef]) -> None:
        """Take back the leases that a holder does not name when it connects. Either the grant never arrived, or the holder has
        stopped the rollout, because by its own clock the lease had expired."""
        for (namespace, id), lease in self.leases.missing(holder, held):
            ref, arrived = LeaseRef(namespace=namespace, id=id, fence=lease.fence), lease.was_held
            await self.lose(ref, "Expired" if arrived else "NotReceived", blameless=not arrived)

    async def lose_allocation(self, uid: str, *, blameless: bool) -> None:
        """Take back the leases of an allocation whose job has certainly ended, without waiting for the leases' expiry.
        `blameless`: as in `Lost`."""
        await self.lose_together(self.leases.of_allocation(uid), "AllocationEnded", blameless=blameless)

    async def lose_together(
        self, leases: Sequence[tuple[RolloutKey, LiveLease]], reason: str, *, blameless: bool = False
    ) -> None:
        """Take back several leases, as `lose`. The store commits them together: one by one they would wait for the disk."""
        refs = [LeaseRef(namespace=key.namespace, id=key.id, fence=lease.fence) for key, lease in leases]
        for error in await asyncio.gather(
            *(self.lose(ref, reason, blameless=blameless) for ref in refs), return_exceptions=True
        ):
            if isinstance(error, BaseException):
                raise error

    async def move_endpoint(
        self, ref: LeaseRef, holder_uid: str, role: str, endpoint: str, reason: str = "", message: str = ""
    ) -> None:
        moved = EndpointMoved(self._clock.time(), ref.fence, role, endpoint, reason, message)
        await self._step_records(lambda tx: [(held_record(tx, ref, holder_uid), moved)])

    async def queued(self, pool: PoolKey) -> dict[Stage, int]:
        """Number of queued rollouts of a pool, by the stage for which they wait."""
        counts = await self._store.counts(pool.namespace, pool.name)
        return {stage: n for (stage, status), n in counts.items() if status is Status.QUEUED}

    async def failing_images(self, pool: PoolKey, default_image: str) -> list[MissingImageView]:
        """Return the pool's images that failed and have not been had since: those that rollouts need first, of them the longest
        failing first."""
        now = self._clock.time()
        found = await self._store.needs_of_missing_images(pool, default_image)
        return [
            MissingImageView(
                namespace=pool.namespace,
                pool=pool.name,
                image=one.image,
                message=one.message,
                permanent=one.permanent,
                failures=one.failures,
                since=one.since,
                until=one.until,
                waiting=waiting,
                next_try=next_try(one, now, needed=waiting > 0, default=one.image == default_image),
            )
            for one, waiting in sorted(found, key=lambda one: (not one[1] and not is_tried(one[0], now), one[0].since))
            if one.failures
        ]

    async def model_demand(
        self, pool: PoolKey, default_image: str | None, role: str
    ) -> tuple[dict[Stage, int], dict[Stage, int]]:
        """Numbers of a pool's queued and leased rollouts that need a model of this role, by stage: those of `demand` and of the
        leases. Checks have no policy."""
        queued, leased = await self.demand(pool, default_image), self.leases.in_flight(*pool)
        if role == POLICY_ROLE:
            checks = await self._store.count_checks(pool)
            for counts, number in zip((queued, leased), checks, strict=True):
                counts[Stage.INIT] = counts.get(Stage.INIT, 0) - number
        return queued, leased

    async def demand(self, pool: PoolKey, default_image: str | None) -> dict[Stage, int]:
        """Number of queued rollouts of a pool that more workers would help, by stage: without those whose image cannot be
        had now."""
        queued = await self.queued(pool)
        if queued.get(Stage.INIT) and await self._store.missing_images(pool):
            waiting = await self._store.count_without_image(pool, default_image or "", self._clock.time())
            queued[Stage.INIT] = max(0, queued[Stage.INIT] - waiting)
        return queued

    # changes of stored records; `dispatch` stores grants, and `submit` stores new records

    async def _apply_events(self, events: Sequence[tuple[RolloutKey, Event]]) -> None:
        def change(tx: Transaction) -> list[tuple[RolloutRecord, Event]]:
            found = []
            for (namespace, id), event in events:
                record = tx.get(namespace, id)
                if record is None:
                    raise NotFound(f"rollout {id!r} not found in namespace {namespace!r}")
                found.append((record, event))
            return found

        await self._step_records(change)

    async def _step_records(self, pick: Report) -> list[RolloutRecord]:
        """Apply the events that `pick` returns to their records in one transaction; then carry out the effects."""

        return await self.transact(lambda tx, changes: [changes.step(tx, record, event) for record, event in pick(tx)])

    async def _step_each(self, picks: Sequence[Report]) -> list[ApiError | None]:
        """Apply the events that each function in `picks` returns, in one transaction. Return for each function the
        error, or None. If one function finds that its lease is void, or that it cannot be stored, no event of this function is
        stored; the events of the other functions are stored."""

        def change(tx: Transaction, changes: RecordChanges) -> list[ApiError | None]:
            errors: list[ApiError | None] = []
            for pick in picks:
                try:
                    for record, event in pick(tx):
                        changes.step(tx, record, event)
                    errors.append(None)
                except (Fenced, Invalid, TooLarge) as error:
                    errors.append(error)
            return errors

        return await self.transact(change)

    async def transact(self, change: Callable[[Transaction, RecordChanges], T]) -> T:
        """Run `change` in one transaction; then carry out the effects, and call the functions in `after_commit`.

        The transaction also updates the batches of ended rollouts.
        """
        now = self._clock.time()

        def run(tx: Transaction) -> tuple[T, RecordChanges]:
            changes = RecordChanges(self.leases.run_begun)
            found = change(tx, changes)
            self._settle_groups(tx, changes, now)
            return found, changes

        found, changes = await self._store.transact(run)
        for before, after, effects in changes.stepped:
            self._carry_out_effects(before, after, effects)
        for pool in {record.pool_key for record in changes.inserted}:
            self.rollout_queued.emit(pool, now)
        for committed in changes.after_commit:
            committed()
        return found

    def _carry_out_effects(self, before: RolloutRecord, after: RolloutRecord, effects: tuple[Effect, ...]) -> None:
        if after.faults > before.faults and after.error is not None:
            ATTEMPTS_FAULTED.labels(after.error.reason if after.error.reason in FAULT_REASONS else "Other").inc()
        if after.leased:
            self.leases.lease_changed(after)
        elif before.leased:
            self.leases.discard(before.key)
        for effect in effects:
            match effect:
                case Requeued(at=at):
                    self.rollout_queued.emit(after.pool_key, at)
                case StopHolder(holder=holder, fence=fence):
                    agent = self._node_agents.get(holder)
                    if agent is not None:
                        agent.send(Cancel(lease=LeaseRef(namespace=after.namespace, id=after.id, fence=fence)))
                case Ended():
                    self.completion_rate.count(after.pool_key, after.status)
                    self.ends.note(after)

    def _stop_void_holder(self, ref: LeaseRef) -> None:
        lease = self.leases.get(ref.rollout)
        if lease is not None and lease.fence <= ref.fence:
            log.info("lease %s of rollout %s had already ended in the store", ref.fence, ref.id)
            self.leases.discard(ref.rollout)


def _event(record: RolloutRecord, verdict: StalenessVerdict, now: float) -> Event:
    if verdict.ends_rollout:
        return Cancelled(now, verdict.why, verdict.message)
    return Outdated(now, record.fence, verdict.why, verdict.message)
