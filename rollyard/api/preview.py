"""`GET .../PLURAL/NAME/script`: batch script of a pool's next allocation, and the number of jobs that the pool would
submit now. PLURAL is `rolloutpools` or `inferencepools`.

`POST` returns the same for the pool in the body, and stores nothing. Missing fields get the values that a create or
replace would give them. Dry runs and diffs of the command line use `POST`, because the API's own `dryRun=All` returns
only the object, as in Kubernetes.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from rollyard.api import request_bodies
from rollyard.api.model_check import check_model
from rollyard.api.object_writes import BASE, check_site, object_key, parse_pool, read_body, writable
from rollyard.api.representation import respond
from rollyard.api.services import SERVICES
from rollyard.core.errors import BadRequest, NotFound
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import evolve
from rollyard.kinds.registry import POOL_KINDS, Pool


def routes() -> list[web.RouteDef]:
    path = f"{BASE}/namespaces/{{namespace}}/{{plural}}/{{name}}/script"
    return [web.get(path, _script_of_stored), web.post(path, _script_of_body)]


async def _script_of_stored(request: web.Request) -> web.Response:
    """Preview a stored pool: the batch script of its next allocation, and the number of jobs to submit now."""
    writable(request)
    pool = await request.app[SERVICES].store.objects.get(object_key(request), POOL_KINDS)
    return await _submission(request, pool)


async def _script_of_body(request: web.Request) -> web.Response:
    """Preview the pool in the body, stored or not: its batch script, and the number of jobs to submit."""
    wanted = await request_bodies.run_in_parser_thread(parse_pool, request, await read_body(request))
    key = object_key(request)
    if wanted.metadata.name != key.name:
        raise BadRequest("metadata.name differs from the name in the path")
    await check_site(request, wanted)
    await check_model(wanted)
    try:
        current = await request.app[SERVICES].store.objects.get(key, POOL_KINDS)
    except NotFound:
        return await _submission(request, wanted)
    return await _submission(request, evolve(current, spec=wanted.spec))


async def _submission(request: web.Request, pool: Pool) -> web.Response:
    services, meta = request.app[SERVICES], pool.metadata
    found, _ = await services.store.objects.list_objects("Allocation", meta.namespace)
    owned = [a for a in found if isinstance(a, Allocation) and a.spec.pool.uid == meta.uid]
    shown = await asyncio.to_thread(services.submission, pool, owned)
    return respond(request, shown.model_dump(mode="json", by_alias=True))
