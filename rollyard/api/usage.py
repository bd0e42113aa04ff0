"""Routes of what pools have used, and of allocations whose jobs have ended. They read all namespaces unless one is given."""

from __future__ import annotations

import asyncio

from aiohttp import web

from rollyard.api.costly_answers import costly
from rollyard.api.query_parameters import accepts, integer, seconds
from rollyard.api.services import SERVICES
from rollyard.core.errors import BadRequest
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.usage import USAGE_BY, AllocationHistory, job_times
from rollyard.server.usage import usage
from rollyard.store.usage_hours import HOUR

DEFAULT_SECONDS = 7 * 24 * HOUR
DEFAULT_JOBS, MAX_JOBS = 100, 100_000
DEFAULT_ALLOCATIONS, MAX_ALLOCATIONS = 1000, 100_000


def routes() -> list[web.RouteDef]:
    return [
        web.get("/v1/usage", _usage),
        web.get("/v1/usage/slurm", _slurm_usage),
        web.get("/v1/allocations/history", _history),
    ]


@accepts("namespace", "since", "by")
@costly
async def _usage(request: web.Request) -> web.Response:
    """Read GPU-hours, CPU-hours, tokens and rollouts since a time (Unix seconds; default: a week ago)."""
    services, namespace, by = request.app[SERVICES], request.query.get("namespace"), request.query.get("by", "pool")
    if by not in USAGE_BY:
        raise BadRequest(f"by must be one of {', '.join(USAGE_BY)}, not {by[:40]!r}")
    now = services.clock.time()
    hour = _hour(request, now)
    objects, _ = await services.store.objects.list_objects(Allocation.__name__, namespace)
    live = [one for one in objects if isinstance(one, Allocation)]
    # Only now, so that no job that ends in between is missed.
    ended = await services.store.ended_allocations.since(hour * HOUR, namespace)
    hours = await services.store.rollouts.usage_since(hour, namespace)
    found = await asyncio.to_thread(lambda: usage(job_times(ended, live, now), hours, by, hour * HOUR, now))
    return web.json_response(found.model_dump(mode="json"))


@accepts("namespace", "since", "limit")
async def _slurm_usage(request: web.Request) -> web.Response:
    """Compare the hours of jobs since a time with Slurm's accounting. Comparisons take turns of their own, because accounting
    may be slow."""
    services, limit = request.app[SERVICES], integer(request, "limit", DEFAULT_JOBS, least=1)
    since = _hour(request, services.clock.time()) * HOUR
    found = await services.slurm_usage(request.query.get("namespace"), since, min(limit, MAX_JOBS))
    return web.Response(text=await asyncio.to_thread(found.model_dump_json), content_type="application/json")


def _hour(request: web.Request, now: float) -> int:
    """Return the whole hour, since 1970, in which the time begins that a request asks about."""
    return int(min(seconds(request, "since", max(0.0, now - DEFAULT_SECONDS)), now + HOUR) // HOUR)


@accepts("namespace", "since", "limit")
@costly
async def _history(request: web.Request) -> web.Response:
    """List the allocations whose jobs ended at a time (Unix seconds; default: a week ago) or later, newest first."""
    services = request.app[SERVICES]
    since = seconds(request, "since", max(0.0, services.clock.time() - DEFAULT_SECONDS))
    limit = min(integer(request, "limit", DEFAULT_ALLOCATIONS, least=1), MAX_ALLOCATIONS)
    found = await services.store.ended_allocations.since(since, request.query.get("namespace"), limit)
    text = await asyncio.to_thread(AllocationHistory(allocations=found).model_dump_json)
    return web.Response(text=text, content_type="application/json")
