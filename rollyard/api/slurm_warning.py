"""Warning on answers about allocations: Slurm's queue is unknown or in doubt, so they are as Slurm gave them before that."""

from __future__ import annotations

from aiohttp import web

from rollyard.api.object_writes import objects_of
from rollyard.api.representation import warn
from rollyard.api.resources import Resource
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import get_condition
from rollyard.kinds.registry import Pool
from rollyard.store.object_store import ObjectStore


async def warn_while_slurm_is_away(request: web.Request, resource: Resource) -> None:
    """Warn the caller, if the answer has allocations."""
    if resource.kind is Allocation and (message := await _message(objects_of(request))):
        warn(request, f"{message}. States, nodes and times of jobs are as Slurm gave them before that")


async def _message(store: ObjectStore) -> str:
    """Return the message of the first pool that says so, in any namespace: all pools share one Slurm. Empty: none does."""
    for kind in ("RolloutPool", "InferencePool"):
        for pool in (await store.list_objects(kind))[0]:
            found = get_condition(pool.status.conditions, "SlurmReachable") if isinstance(pool, Pool) else None
            if found is not None and found.status == "False":
                return found.message
    return ""
