"""Puts the reconcilers together: which change wakes which key."""

from __future__ import annotations

from rollyard.clock import Clock
from rollyard.controller.expectations import Expectations
from rollyard.controller.informer import Informer
from rollyard.controller.manager import Controller, Manager
from rollyard.controller.recorder import Recorder
from rollyard.inference.endpoints import Endpoints
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey, get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.reconcilers.allocation import AllocationReconciler
from rollyard.reconcilers.inference_pool import InferenceTrade
from rollyard.reconcilers.missing import Known
from rollyard.reconcilers.orphans import OrphanSweep
from rollyard.reconcilers.pool import PoolReconciler
from rollyard.reconcilers.rollout_pool import RolloutTrade
from rollyard.reconcilers.snapshots import SnapshotFeed
from rollyard.reconcilers.submitter import Submitter
from rollyard.reconcilers.workspace import Workspace
from rollyard.rollouts.agents import Agents
from rollyard.rollouts.service import Rollouts
from rollyard.slurm.base import Driver
from rollyard.store.base import Store


def build_manager(
    store: Store,
    driver: Driver,
    feed: SnapshotFeed,
    workspace: Workspace,
    agents: Agents,
    endpoints: Endpoints,
    rollouts: Rollouts,
    clock: Clock,
) -> Manager:
    """The manager of all kinds; `run` it, and `add` a key to have it looked at."""
    recorder, expectations = Recorder(store, clock), Expectations(clock)
    allocations = Informer(store, Allocation, lambda a: a.spec.pool.uid)
    inference_pools, rollout_pools = Informer(store, InferencePool), Informer(store, RolloutPool)

    def pool(trade: RolloutTrade | InferenceTrade) -> PoolReconciler:
        return PoolReconciler(store, allocations, feed, recorder, expectations, clock, trade)

    submitter = Submitter(store, driver, feed, workspace, recorder, clock)

    async def job_ended(uid: str) -> None:
        agents.expel(uid)
        await rollouts.lose_allocation(uid)

    jobs = AllocationReconciler(
        store, driver, feed, workspace, recorder, agents, endpoints, clock, submitter, job_ended
    )
    feed.known = lambda: [_known(a, agents, endpoints, submitter, clock) for a in allocations.list() if _lives(a)]
    manager = Manager(
        informers=[allocations, inference_pools, rollout_pools],
        controllers=[
            Controller("Allocation", jobs),
            Controller("InferencePool", pool(InferenceTrade(endpoints, rollouts, rollout_pools.list, clock))),
            Controller("RolloutPool", pool(RolloutTrade(agents, rollouts, inference_pools.get))),
        ],
        beside=[feed.run, submitter.run, OrphanSweep(store, driver, feed, workspace).run],
    )

    def allocation_changed(old: Allocation | None, new: Allocation | None) -> None:
        seen = new or old
        assert seen is not None
        owner = seen.spec.pool
        key = ObjectKey(kind=owner.kind, namespace=seen.metadata.namespace, name=owner.name)
        if new is not None:
            expectations.met(key, ("created", new.metadata.name))
            manager.add(new.key)
        if new is None or new.metadata.deletion_timestamp is not None:
            expectations.met(key, ("deleted", seen.metadata.name))
        manager.add(key)

    def pool_changed(old: InferencePool | RolloutPool | None, new: InferencePool | RolloutPool | None) -> None:
        seen = new or old
        assert seen is not None
        if isinstance(seen, InferencePool):
            meta = seen.metadata
            endpoints.follow(
                (meta.namespace, meta.name), new.status.weights if isinstance(new, InferencePool) else None
            )
        if _declared(old) != _declared(new):  # and not for what its own look wrote
            manager.add(seen.key)
        if (_declared(old), _is_ready(old)) == (_declared(new), _is_ready(new)):
            return
        if isinstance(seen, InferencePool):
            for user in rollout_pools.list():
                manager.add(user.key)
        else:  # its queue is their demand
            for name in seen.spec.inference.values():
                manager.add(ObjectKey(kind="InferencePool", namespace=seen.metadata.namespace, name=name))

    def jobs_changed(owners: set[str]) -> None:
        for allocation in allocations.list():
            if not owners or workspace.owner(allocation) in owners:
                manager.add(allocation.key)
        if not owners:
            for found in (*inference_pools.list(), *rollout_pools.list()):
                manager.add(found.key)

    allocations.subscribe(allocation_changed)
    inference_pools.subscribe(pool_changed)
    rollout_pools.subscribe(pool_changed)
    feed.changed = jobs_changed
    return manager


def _lives(allocation: Allocation) -> bool:
    return allocation.status.job_id is not None and not allocation.status.ended


def _known(allocation: Allocation, agents: Agents, endpoints: Endpoints, submitter: Submitter, clock: Clock) -> Known:
    """Its job, with the last word of the process that is bound to it."""
    status, uid = allocation.status, allocation.metadata.uid
    assert status.job_id is not None
    endpoint, agent = endpoints.of_allocation(uid), agents.of_allocation(uid)
    heard = endpoint.heard_at if endpoint is not None else agent.heard_at if agent is not None else None
    bound = status.binding is not None and status.binding.job_id == status.job_id
    return Known(
        status.job_id,
        runs=status.job_state == "RUNNING",
        restart_count=status.restart_count,
        heard_at=clock.time() - (clock.monotonic() - heard) if bound and heard is not None else None,
        since=submitter.answered.get(uid, 0.0),
        leaving=allocation.metadata.deletion_timestamp is not None,
    )


def _declared(pool: Pool | None) -> tuple[object, ...] | None:
    """What of a pool is not its controller's own word."""
    if pool is None:
        return None
    meta = pool.metadata
    operation = pool.status.weights.operation if isinstance(pool, InferencePool) else None
    pending = operation is not None and operation.phase == "Pending"
    asked = (operation.target.version, operation.started_at) if operation is not None and pending else None
    return meta.uid, meta.generation, meta.deletion_timestamp, meta.finalizers, asked


def _is_ready(pool: Pool | None) -> bool:
    ready = get_condition(pool.status.conditions, "Ready") if pool is not None else None
    return ready is not None and ready.status == "True"
