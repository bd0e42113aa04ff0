"""Routes of saved turns: a node agent stores them during RUN, and the next one reads them."""

from __future__ import annotations

import asyncio

from aiohttp import web

from rollyard.api.auth import CLAIMS
from rollyard.api.leased_rollout import leased_rollout
from rollyard.api.query_parameters import accepts
from rollyard.api.services import SERVICES
from rollyard.api.snapshots import for_node_agent, send_stored
from rollyard.api.uploads import store_uploads
from rollyard.core.errors import Damaged, NotFound
from rollyard.server.rollouts.saved_turns import split_turns
from rollyard.trajectory.frames import framed, sealed
from rollyard.wire.node import StoredTurns


def routes() -> list[web.RouteDef]:
    return [
        web.put("/v1/node/turns", _put),
        web.get("/v1/node/turns", _get),
        web.get("/v1/node/turns/snapshot", _get_snapshot),
    ]


async def _put(request: web.Request) -> web.Response:
    rollouts, holder = request.app[SERVICES].rollouts, request[CLAIMS].subject
    return await store_uploads(request, split_turns, lambda uploads: rollouts.store_turns(uploads, holder))


@accepts("namespace", "id", "fence")
async def _get(request: web.Request) -> web.StreamResponse:
    """Send what belongs to the turns as one frame, and a frame for each turn, all sealed."""
    record, services = await leased_rollout(request), request.app[SERVICES]
    state, turns = await services.store.rollouts.saved_turns(record)
    about = StoredTurns(
        snapshot=state.snapshot.about if state.snapshot is not None else None,
        resumptions=list(state.resumptions),
    )
    frames = [framed(about.model_dump_json().encode()), *map(framed, turns)]
    body = await asyncio.to_thread(lambda: sealed(b"".join(frames)))
    return await send_stored(request, [body], {"Content-Type": "application/octet-stream"})


@accepts("namespace", "id", "fence")
async def _get_snapshot(request: web.Request) -> web.StreamResponse:
    record, services = await leased_rollout(request), request.app[SERVICES]
    state, _ = await services.store.rollouts.saved_turns(record)
    if state.snapshot is None:
        raise NotFound(f"rollout {record.id!r} has no snapshot from which it can go on")
    try:
        return await for_node_agent(request, state.snapshot)
    except Damaged as error:  # the calls can be run again instead
        raise NotFound(str(error)) from None
