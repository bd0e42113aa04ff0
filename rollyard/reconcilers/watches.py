"""Builds all reconcilers. A table in `build_reconcilers` shows, for each kind of change, which keys are queued for a
reconcile.

The functions below the table map a change to keys, as in controller-runtime: the changed object itself (For), its owner
(Owns), and other objects that depend on it (Watches).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rollyard.controller.event_recorder import EventRecorder
from rollyard.controller.expectations import Expectations
from rollyard.controller.informer import Informer
from rollyard.controller.manager import Controller, Manager
from rollyard.core.clock import Clock
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import KindObject, ObjectKey, get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.usage import EndedAllocation
from rollyard.reconcilers.allocation import AllocationReconciler
from rollyard.reconcilers.allocation_folder import AllocationFolders
from rollyard.reconcilers.inference_pool import InferencePoolObserver
from rollyard.reconcilers.job_listings import ListingFeed
from rollyard.reconcilers.job_submitter import Submitter
from rollyard.reconcilers.known_jobs import KnownJobs
from rollyard.reconcilers.orphan_jobs import OrphanSweep
from rollyard.reconcilers.owners import dependents
from rollyard.reconcilers.pool import PoolReconciler
from rollyard.reconcilers.rollout_pool import RolloutPoolObserver
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.server.rollouts.service import RolloutService
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.slurm.base import Driver
from rollyard.store.object_store import ObjectStore

T = TypeVar("T", bound=KindObject)
ChangedKeys = Callable[[T | None, T | None], Iterable[ObjectKey]]
"""Function (old, new) -> keys to reconcile after a change. `old` is None for a created object, `new` for a deleted one."""


@dataclass(frozen=True)
class Reconcilers:
    manager: Manager
    """Manager of all reconcilers. `run` starts the work; `add` queues a key."""
    feed: ListingFeed
    """Slurm's state for all reconcilers. The manager runs this feed."""


def build_reconcilers(
    store: ObjectStore,
    driver: Driver,
    workspace: AllocationFolders,
    node_agents: ConnectedNodeAgents,
    endpoints: EndpointRegistry,
    rollouts: RolloutService,
    outside_demand: Callable[[PoolKey], int],
    note_ended: Callable[[EndedAllocation], Awaitable[None]],
    clock: Clock,
) -> Reconcilers:
    """Make the reconcilers of all kinds.

    `outside_demand`: returns the number of open and requested sessions of external agents in an InferencePool.
    `note_ended`: stores an ended allocation, which outlives its object.
    """
    recorder, expectations = EventRecorder(store, clock), Expectations(clock)
    allocations = Informer(store, Allocation, lambda a: a.spec.pool.uid)
    inference_pools, rollout_pools = Informer(store, InferencePool), Informer(store, RolloutPool)
    answered: dict[str, float] = {}
    known = KnownJobs(allocations, node_agents, endpoints, answered, workspace.owner, clock)
    feed = ListingFeed(driver, clock, known.list)
    submitter = Submitter(store, driver, feed, workspace, recorder, answered, clock)

    async def end_leases(uid: str, outside: bool) -> None:
        node_agents.expel(uid)
        await rollouts.lose_allocation(uid, blameless=outside)

    def pool_reconciler(observer: RolloutPoolObserver | InferencePoolObserver) -> PoolReconciler:
        return PoolReconciler(store, allocations, feed, recorder, expectations, clock, observer)

    jobs = AllocationReconciler(
        store, driver, feed, workspace, recorder, node_agents, endpoints, clock, submitter, end_leases, note_ended
    )
    inference = InferencePoolObserver(endpoints, rollouts, rollout_pools.list, outside_demand, clock)
    manager = Manager(
        informers=[allocations, inference_pools, rollout_pools],
        controllers=[
            Controller("Allocation", jobs),
            Controller("InferencePool", pool_reconciler(inference)),
            Controller("RolloutPool", pool_reconciler(RolloutPoolObserver(node_agents, rollouts, inference_pools.get))),
        ],
        beside=[feed.run, submitter.run, OrphanSweep(store, driver, feed, workspace).run],
    )

    def reconcile(informer: Informer[T], *mappings: ChangedKeys[T]) -> None:
        def changed(old: T | None, new: T | None) -> None:
            for keys in mappings:
                for key in keys(old, new):
                    manager.add(key)

        informer.subscribe(changed)

    def jobs_changed(owners: set[str]) -> None:
        for allocation in allocations.list():
            if not owners or workspace.owner(allocation) in owners:
                manager.add(allocation.key)
        if not owners:
            for pool in (*inference_pools.list(), *rollout_pools.list()):
                manager.add(pool.key)

    def pools_it_owned(old: KindObject | None, new: KindObject | None) -> Iterable[ObjectKey]:
        return dependents([*inference_pools.list(), *rollout_pools.list()], old, new)

    # a change of                 is recorded by
    allocations.subscribe(partial(_meet_expectations, expectations))
    inference_pools.subscribe(partial(_follow_weights, endpoints))
    # a change of                 queues these keys
    reconcile(allocations,        allocation_itself, owning_pool, pools_it_owned)  # fmt: skip
    reconcile(inference_pools,    pool_itself, pools_it_owned, partial(rollout_pools_that_may_use, rollout_pools))  # fmt: skip
    reconcile(rollout_pools,      pool_itself, pools_it_owned, inference_pools_it_uses)  # fmt: skip
    feed.jobs_changed.connect(jobs_changed)
    return Reconcilers(manager, feed)


# keys


def allocation_itself(old: Allocation | None, new: Allocation | None) -> Iterable[ObjectKey]:
    return () if new is None else (new.key,)


def owning_pool(old: Allocation | None, new: Allocation | None) -> Iterable[ObjectKey]:
    yield _seen(old, new).owner


def pool_itself(old: Pool | None, new: Pool | None) -> Iterable[ObjectKey]:
    """Key of the changed pool; no key if its declared part is the same, as after most writes of the status."""
    return (_seen(old, new).key,) if _declared_part(old) != _declared_part(new) else ()


def rollout_pools_that_may_use(
    rollout_pools: Informer[RolloutPool], old: InferencePool | None, new: InferencePool | None
) -> Iterable[ObjectKey]:
    return [pool.key for pool in rollout_pools.list()] if _matters_to_others(old, new) else ()


def inference_pools_it_uses(old: RolloutPool | None, new: RolloutPool | None) -> Iterable[ObjectKey]:
    """InferencePools that a changed RolloutPool uses. The RolloutPool's queue is demand on these pools."""
    if not _matters_to_others(old, new):
        return ()
    pool = _seen(old, new)
    namespace = pool.metadata.namespace
    return [ObjectKey(kind="InferencePool", namespace=namespace, name=n) for n in pool.spec.inference.values()]


# records


def _meet_expectations(expectations: Expectations, old: Allocation | None, new: Allocation | None) -> None:
    seen = _seen(old, new)
    if new is not None:
        expectations.observed(seen.owner, ("created", seen.metadata.name))
    if new is None or new.metadata.deletion_timestamp is not None:
        expectations.observed(seen.owner, ("deleted", seen.metadata.name))


def _follow_weights(endpoints: EndpointRegistry, old: InferencePool | None, new: InferencePool | None) -> None:
    endpoints.follow_weights(_seen(old, new).pool_key, new.status.weights if new is not None else None)


# conditions of a change


def _seen(old: T | None, new: T | None) -> T:
    seen = new or old
    assert seen is not None
    return seen


def _matters_to_others(old: Pool | None, new: Pool | None) -> bool:
    return (_declared_part(old), _is_ready(old)) != (_declared_part(new), _is_ready(new))


def _declared_part(pool: Pool | None) -> tuple[object, ...] | None:
    """Values that change when the pool needs a reconcile: spec (by its generation), deletion, finalizers, owners, and a
    requested weights update. None if there is no pool."""
    if pool is None:
        return None
    meta = pool.metadata
    operation = pool.status.weights.operation if isinstance(pool, InferencePool) else None
    pending = operation is not None and operation.phase == "Pending"
    update = (operation.target.version, operation.started_at) if operation is not None and pending else None
    return meta.uid, meta.generation, meta.deletion_timestamp, meta.finalizers, meta.owner_references, update


def _is_ready(pool: Pool | None) -> bool:
    ready = get_condition(pool.status.conditions, "Ready") if pool is not None else None
    return ready is not None and ready.status == "True"
