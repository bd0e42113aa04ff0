"""The rollout of a node agent's request that names a lease in its query."""

from __future__ import annotations

from aiohttp import web

from rollyard.api.auth import CLAIMS
from rollyard.api.query_parameters import namespace_of
from rollyard.api.services import SERVICES
from rollyard.core.errors import Fenced
from rollyard.store.base import RolloutRecord, allocation_uid


async def leased_rollout(request: web.Request) -> RolloutRecord:
    """Return the rollout. Raises Fenced if the sender has no lease of it, and NotFound."""
    query = request.query
    id = query.get("id", "")
    record = await request.app[SERVICES].rollouts.get(namespace_of(request), id)
    if str(record.fence) != query.get("fence") or allocation_uid(record.holder) != request[CLAIMS].subject:
        raise Fenced(f"lease {query.get('fence')} of rollout {id} is void; drop its work")
    return record
