"""Routes of forks: the node agent of a rollout that goes on from a turn of another rollout reads the other rollout."""

from __future__ import annotations

import json

from aiohttp import web

from rollyard.api.leased_rollout import leased_rollout
from rollyard.api.query_parameters import accepts
from rollyard.api.services import SERVICES, Services
from rollyard.api.snapshots import for_node_agent, frame_of, send_stored
from rollyard.core.errors import Invalid
from rollyard.kinds.rollout import ForkPoint, RolloutRequest
from rollyard.server.rollouts.forks import Forks
from rollyard.store.base import BlobRef, RolloutRecord
from rollyard.trajectory.frames import framed


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/node/fork", _get_ancestors), web.get("/v1/node/fork/snapshot", _get_snapshot)]


@accepts("namespace", "id", "fence")
async def _get_ancestors(request: web.Request) -> web.StreamResponse:
    """Send the rollouts from which the lease's rollout goes on: for each two frames, its ForkPoint and its result."""
    services, record, point = await _leased_fork(request)
    parts: list[bytes | BlobRef] = []
    for ancestor, found in await Forks(services.store).ancestors(record.namespace, point):
        assert found.result is not None
        parts += [framed(json.dumps(ancestor.model_dump()).encode()), *frame_of(found.result)]
    return await send_stored(request, parts, {"Content-Type": "application/octet-stream"})


@accepts("namespace", "id", "fence")
async def _get_snapshot(request: web.Request) -> web.StreamResponse:
    """Send the snapshot from which the lease's rollout goes on: its image in a header, and its archive."""
    services, record, point = await _leased_fork(request)
    _, snapshot = await Forks(services.store).point(record.namespace, point)
    return await for_node_agent(request, snapshot)


async def _leased_fork(request: web.Request) -> tuple[Services, RolloutRecord, ForkPoint]:
    record = await leased_rollout(request)
    point = RolloutRequest.model_validate_json(record.request).agent.fork_from
    if point is None:
        raise Invalid(f"rollout {record.id} goes on from no other rollout")
    return request.app[SERVICES], record, point
