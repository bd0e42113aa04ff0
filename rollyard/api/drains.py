"""`POST …/allocations/NAME/drain`: an allocation that takes no new work, and whose unfinished rollouts move to others."""

from __future__ import annotations

from aiohttp import web

from rollyard.api.auth import CLAIMS
from rollyard.api.object_writes import BASE, WRITE_RETRIES, is_dry_run, object_key, objects_of, read_body
from rollyard.api.representation import respond
from rollyard.core.errors import BadRequest, Conflict, Invalid, NotFound
from rollyard.kinds.allocation import DRAINED_BY, Allocation
from rollyard.kinds.base import evolve

MAX_GRACE_SECONDS = 30 * 86_400


def routes() -> list[web.RouteDef]:
    return [web.post(f"{BASE}/namespaces/{{namespace}}/{{plural}}/{{name}}/drain", _drain)]


async def _drain(request: web.Request) -> web.Response:
    """Drain an allocation: it takes no new work, and what is not done within `graceSeconds` moves to others."""
    key, body = object_key(request), await read_body(request, empty=True)
    if key.kind != "Allocation":
        raise NotFound(f"only allocations can be drained; to give back those of a pool, suspend or scale {key.name!r}")
    if unknown := sorted(body.keys() - {"graceSeconds"}):
        raise BadRequest(f"unknown field {unknown[0]!r}; the only field is graceSeconds, in whole seconds")
    grace = body.get("graceSeconds")
    if grace is not None and not (type(grace) is int and 0 <= grace <= MAX_GRACE_SECONDS):
        raise Invalid(f"graceSeconds must be a whole number from 0 to {MAX_GRACE_SECONDS}; leave it out for the pool's")
    for left in reversed(range(WRITE_RETRIES)):
        allocation = await objects_of(request).get(key, Allocation)
        spec, meta = evolve(allocation.spec, drain=True), allocation.metadata
        if grace is not None:
            spec = evolve(spec, drain_timeout_seconds=grace)
        if not allocation.spec.drain:
            meta = evolve(meta, annotations={**meta.annotations, DRAINED_BY: request[CLAIMS].subject})
        drained = evolve(allocation, spec=spec, metadata=meta)
        if is_dry_run(request):
            return respond(request, drained.dump())
        try:
            return respond(request, (await objects_of(request).update(drained, "spec")).dump())
        except Conflict:
            if not left:
                raise
    raise AssertionError
