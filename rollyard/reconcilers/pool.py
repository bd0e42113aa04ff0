"""Reconciler of both kinds of pool: their size, allocations and status.

A `PoolObserver` has the parts that differ between the kinds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rollyard.controller.event_recorder import EventRecorder
from rollyard.controller.expectations import Expectations
from rollyard.controller.informer import Informer
from rollyard.controller.manager import Done, RequeueAfter
from rollyard.core.clock import Clock, as_datetime
from rollyard.core.errors import AlreadyExists, Conflict, NotFound, RollyardError
from rollyard.core.failpoints import failpoint
from rollyard.kinds.allocation import Allocation, AllocationSpec, PoolReference
from rollyard.kinds.autoscaling import GpuLedger, ScalingDecision
from rollyard.kinds.base import (
    FINALIZER,
    ConditionUpdate,
    ObjectKey,
    ObjectMeta,
    OwnerReference,
    evolve,
    set_conditions,
)
from rollyard.kinds.event import PoolEvent
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import POOL_KINDS, Pool
from rollyard.reconcilers.autoscaler import Metric, ScaleDecision, ScalerMemory
from rollyard.reconcilers.conditions import PoolView, changes, pool_conditions, replicas
from rollyard.reconcilers.job_listings import ListingFeed
from rollyard.reconcilers.node_avoidance import BadNode, avoiding, bad_nodes
from rollyard.reconcilers.owners import delete_with_owners
from rollyard.reconcilers.plan import Member, PoolPlan, plan_pool, template_hash
from rollyard.reconcilers.pool_observation import PoolObservation, PoolObserver
from rollyard.reconcilers.pool_size import account_gpu_hours, decide_size, shown_hours
from rollyard.reconcilers.revisions import revisions
from rollyard.store.object_store import ObjectStore

log = logging.getLogger(__name__)

DECISIONS = 10
REFRESH_SECONDS, QUIET_SECONDS = 2.0, 16.0
"""Shortest and longest time in seconds between two polls of numbers that change without an event (queues, sessions)."""


class PoolReconciler:
    def __init__(
        self,
        store: ObjectStore,
        allocations: Informer[Allocation],
        feed: ListingFeed,
        recorder: EventRecorder,
        expectations: Expectations,
        clock: Clock,
        observer: PoolObserver,
    ) -> None:
        self._store = store
        self._allocations = allocations
        self._feed = feed
        self._recorder = recorder
        self._expectations = expectations
        self._clock = clock
        self._observer = observer
        self._polls: dict[ObjectKey, tuple[str, float]] = {}
        """Key -> (resourceVersion at the last poll, seconds until the next poll)."""
        self._memories: dict[ObjectKey, ScalerMemory] = {}
        """State of the autoscaler for each pool that follows its demand."""

    async def reconcile(self, key: ObjectKey) -> Done | RequeueAfter:
        try:
            pool = await self._store.get(key, POOL_KINDS)
        except NotFound:
            self._expectations.forget(key)
            self._polls.pop(key, None)
            self._memories.pop(key, None)
            return Done()
        if await delete_with_owners(self._store, pool):
            owners = ", ".join(f"{o.kind} {o.name}" for o in pool.metadata.owner_references)
            await self._recorder.record_event(pool, "OwnersGone", f"deleted, because its owners are gone: {owners}")
            return RequeueAfter(0.0)
        if pool.metadata.deletion_timestamp is None and FINALIZER not in pool.metadata.finalizers:
            await self._add_finalizer(pool)
            failpoint("after-finalizer")
            return RequeueAfter(0.0)
        if (wait := self._expectations.remaining(key)) > 0:
            return RequeueAfter(min(wait, 1.0))  # the informer's copy is old: it lacks our last change
        observation = await self._observer.observe(pool, self._allocations.of(pool.metadata.uid))
        now, members = self._clock.time(), observation.members
        ledger = account_gpu_hours(pool.status.gpu_ledger, (m.allocation for m in members), now)
        scale = self._scale(pool, observation.metrics, ledger, now)
        avoided = bad_nodes(
            pool.spec.allocation, template_hash(pool), [m.allocation for m in members], self._feed.site, now
        )
        plan = plan_pool(pool, members, scale.desired, now, slurm_known=self._feed.latest is not None, avoided=avoided)
        if pool.metadata.deletion_timestamp is not None:
            await self._observer.on_deleted(pool)
        pool = await self._write_status(pool, observation, plan, scale, ledger, avoided, now)
        failpoint("after-pool-status")
        await self._act(pool, members, plan, avoided, now)
        if plan.removable:
            failpoint("before-finalizer-removal")
            await self._drop_finalizer(pool)
            return Done()
        return RequeueAfter(
            min(self._poll_after(key, pool.metadata.resource_version), plan.again_after or QUIET_SECONDS)
        )

    def _poll_after(self, key: ObjectKey, version: str) -> float:
        """Return the seconds until the next poll. This time grows while nothing changes. Events do not wait for a poll."""
        known, seconds = self._polls.get(key, ("", 0.0))
        seconds = REFRESH_SECONDS if known != version else min(QUIET_SECONDS, 2 * seconds)
        self._polls[key] = (version, seconds)
        return seconds

    async def gave_up(self, key: ObjectKey, error: RollyardError) -> None:
        try:
            pool = await self._store.get(key, POOL_KINDS)
        except NotFound:
            return
        await self._recorder.record_event(pool, "ReconcileFailed", str(error), "Warning")
        conditions = set_conditions(
            pool.status.conditions,
            [ConditionUpdate("Ready", False, "ReconcileFailed", str(error))],
            generation=pool.metadata.generation,
            now=as_datetime(self._clock.time()),
        )
        await self._store.update(_with_status(pool, {"conditions": conditions}), "status")

    # decide

    def _scale(self, pool: Pool, metrics: Sequence[Metric], ledger: GpuLedger, now: float) -> ScaleDecision:
        memory = self._memories.pop(pool.key, None) if pool.status.observed_generation else None
        scale = decide_size(pool, memory, metrics, ledger, now)
        if scale.memory is not None:
            self._memories[pool.key] = scale.memory
        return scale

    # act

    async def _act(
        self, pool: Pool, members: Sequence[Member], plan: PoolPlan, avoided: Sequence[BadNode], now: float
    ) -> None:
        by_name = {m.name: m.allocation for m in members}
        made = await asyncio.gather(
            *(self._create(pool, index, avoided) for index in plan.create), return_exceptions=True
        )
        for error in made:
            if isinstance(error, BaseException):
                raise error
        for successor in plan.successors:
            await self._create(pool, successor.index, avoided, of=successor.of, after_job=successor.after_job)
            await self._recorder.record_event(pool, "Renewing", _why_renewed(pool, by_name[successor.of], now))
        for name in plan.drain:
            allocation = by_name[name]
            spec = evolve(allocation.spec, drain=True)
            await self._store.update(evolve(allocation, spec=spec), "spec")
            await self._recorder.record_event(pool, "Draining", f"allocation {name} accepts no new work")
        for name in plan.delete:
            await self._delete(pool, by_name[name])

    async def _create(
        self,
        pool: Pool,
        index: int,
        avoided: Sequence[BadNode],
        *,
        of: str | None = None,
        after_job: str | None = None,
    ) -> None:
        allocation = new_allocation(pool, index, avoided, of=of, after_job=after_job)
        name = allocation.metadata.name
        self._expectations.expect(pool.key, ("created", name))
        try:
            await self._store.create(allocation)
            failpoint("after-create-allocation")
        except AlreadyExists:
            self._expectations.observed(pool.key, ("created", name))  # the allocation was made before a crash
        except RollyardError:
            self._expectations.observed(pool.key, ("created", name))
            raise

    async def _delete(self, pool: Pool, allocation: Allocation) -> None:
        name = allocation.metadata.name
        self._expectations.expect(pool.key, ("deleted", name))
        try:
            await self._store.delete(allocation.key, uid=allocation.metadata.uid)
        except (NotFound, Conflict):
            self._expectations.observed(pool.key, ("deleted", name))
        except RollyardError:
            self._expectations.observed(pool.key, ("deleted", name))
            raise

    async def _add_finalizer(self, pool: Pool) -> None:
        meta = evolve(pool.metadata, finalizers=[*pool.metadata.finalizers, FINALIZER])
        await self._store.update(evolve(pool, metadata=meta), "spec")

    async def _drop_finalizer(self, pool: Pool) -> None:
        kept = [f for f in pool.metadata.finalizers if f != FINALIZER]
        meta = evolve(pool.metadata, finalizers=kept)
        await self._store.update(evolve(pool, metadata=meta), "spec")

    # report

    async def _write_status(
        self,
        pool: Pool,
        observation: PoolObservation,
        plan: PoolPlan,
        scale: ScaleDecision,
        ledger: GpuLedger,
        avoided: Sequence[BadNode],
        now: float,
    ) -> Pool:
        before, ends = pool.status, plan.ends
        view = PoolView(pool, observation, scale, ends, self._feed.access, now, avoided)
        decisions = before.decisions
        if scale.desired != before.replicas.desired:
            decision = ScalingDecision(time=as_datetime(now), desired=scale.desired, message=scale.message)
            decisions = [*decisions, decision][-DECISIONS:]
        update: dict[str, Any] = {
            "observed_generation": pool.metadata.generation,
            "replicas": replicas(view),
            "next_index": plan.next_index,
            "template_hash": ends.template,
            "failures": ends.failures,
            "last_failure_time": _datetime(ends.last_failure),
            "interruptions": ends.interruptions,
            "last_interruption_time": _datetime(ends.last_interruption),
            "startup_seconds": round(plan.startup, 3) if plan.startup is not None else None,
            "startup_measured_at": _datetime(plan.startup_at),
            "scaling": scale.record,
            "decisions": decisions,
            "revisions": revisions(pool, ends.template, as_datetime(now)),
            "gpu_ledger": ledger,
            "gpu_hours": shown_hours(ledger, now),
            "conditions": pool_conditions(view),
            **observation.status_update,
        }
        changed = _with_status(pool, update)
        if changed.status == before:
            return pool
        written = await self._store.update(changed, "status")
        events = list(observation.events)
        if scale.desired != before.replicas.desired:
            message = f"from {before.replicas.desired} to {scale.desired} allocations: {scale.message}"
            events.append(PoolEvent("Scaled", message))
        for event in [*events, *changes(before, written.status)]:
            await self._recorder.record_event(
                pool, event.reason, event.message, "Warning" if event.warning else "Normal"
            )
        return written


def new_allocation(
    pool: Pool,
    index: int,
    avoided: Sequence[BadNode] = (),
    *,
    of: str | None = None,
    after_job: str | None = None,
) -> Allocation:
    """Return a new allocation of a pool. `avoided`: nodes on which it must not start. `of`: name of the allocation that
    the new one succeeds. Pure."""
    meta = pool.metadata
    return Allocation(
        metadata=ObjectMeta(
            name=f"{meta.name}-{'ip' if isinstance(pool, InferencePool) else 'rp'}-{index}",
            namespace=meta.namespace,
            labels={"rollyard.dev/pool": meta.name},
            finalizers=[FINALIZER],
            owner_references=[OwnerReference(kind=pool.kind, name=meta.name, uid=meta.uid, controller=True)],
        ),
        spec=AllocationSpec(
            pool=PoolReference(kind=pool.kind, name=meta.name, uid=meta.uid),
            index=index,
            template_hash=template_hash(pool),
            template=avoiding(pool.spec.allocation, avoided),
            model=pool.spec.model.path if isinstance(pool, InferencePool) else None,
            drain_timeout_seconds=pool.spec.renewal.drain_timeout_seconds,
            successor_of=of,
            after_job=after_job,
        ),
    )


def _why_renewed(pool: Pool, old: Allocation, now: float) -> str:
    if old.spec.template_hash != template_hash(pool):
        return f"allocation {old.metadata.name} is out of date; a successor is submitted"
    assert old.status.end_time is not None
    left = old.status.end_time.timestamp() - now
    return f"the walltime of allocation {old.metadata.name} ends in {left:.0f} s; a successor is submitted"


def _datetime(unix: float | None) -> datetime | None:
    return as_datetime(unix) if unix is not None else None


def _with_status(pool: Pool, update: dict[str, Any]) -> Pool:
    return evolve(pool, status=evolve(pool.status, **update))
