"""Binding of an allocation to the first process that registers for it. Other processes of the allocation must exit.

Two copies of a job can run: a lost node comes back with the job still running, or a submit is repeated because Slurm's
answer to the first one was lost. The binding is written once, under optimistic concurrency, and never changes.
"""

from __future__ import annotations

from rollyard.core.clock import Clock, as_datetime
from rollyard.core.errors import Conflict, Fenced, NotFound
from rollyard.kinds.allocation import Allocation, Binding
from rollyard.kinds.base import evolve
from rollyard.store.object_store import ObjectStore
from rollyard.wire.base import Identity

RETRIES = 10


async def bind(store: ObjectStore, clock: Clock, identity: Identity) -> Allocation:
    """Bind the allocation to the process that `identity` names; return the allocation.

    Raises Fenced if that process must exit, and Conflict if other writes came first in all RETRIES tries.
    """
    for _ in range(RETRIES):
        allocation = await _allocation(store, identity)
        status = allocation.status
        if status.is_ended:
            raise Fenced(
                f"job {status.job_id} of {identity.allocation} has ended according to Slurm; this copy must exit"
            )
        if status.binding is not None:
            if _is_same_process(status.binding, identity):
                return allocation
            raise Fenced(
                f"allocation {identity.allocation} is bound to job {status.binding.job_id} "
                f"(restart {status.binding.restart_count}) on {status.binding.node}; this copy must exit"
            )
        if status.job_id is not None and status.job_id != identity.job_id:
            raise Fenced(
                f"allocation {identity.allocation} is job {status.job_id}, not {identity.job_id}; this copy must exit"
            )
        binding = Binding(
            job_id=identity.job_id,
            restart_count=identity.restart_count,
            instance=identity.instance,
            node=identity.node,
            registered_at=as_datetime(clock.time()),
        )
        update = {"binding": binding, "job_id": identity.job_id}
        bound = evolve(allocation, status=evolve(status, **update))
        try:
            return await store.update(bound, "status")
        except Conflict:
            continue  # a reconciler, or the registration of another process, has written the object meanwhile
    raise Conflict(f"allocation {identity.allocation} changes too often to be written; register again")


async def _allocation(store: ObjectStore, identity: Identity) -> Allocation:
    try:
        key = Allocation.key_of(identity.namespace, identity.allocation)
        found = await store.get(key, Allocation)
    except NotFound:
        raise Fenced(f"allocation {identity.allocation} no longer exists; this job must end") from None
    if found.metadata.uid != identity.uid:
        raise Fenced(f"allocation {identity.allocation} was deleted and created again; this job must end")
    return found


def _is_same_process(binding: Binding, identity: Identity) -> bool:
    mine = (identity.job_id, identity.restart_count, identity.instance)
    return (binding.job_id, binding.restart_count, binding.instance) == mine
