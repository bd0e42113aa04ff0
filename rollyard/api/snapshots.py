"""Routes of rollouts' snapshots: a node agent stores them, and a client lists and reads them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence

from aiohttp import web
from pydantic_core import from_json

from rollyard.api import request_bodies
from rollyard.api.auth import CLAIMS
from rollyard.api.leased_rollout import leased_rollout
from rollyard.api.query_parameters import accepts, namespace_of
from rollyard.api.services import SERVICES, Services
from rollyard.core.byte_budget import ByteBudget
from rollyard.core.errors import Invalid, NotFound
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.rollout_snapshot import RolloutSnapshots
from rollyard.server.rollouts.results import snapshot_of_turn
from rollyard.store.base import BlobRef, RolloutRecord, StoredSnapshot
from rollyard.trajectory.frames import frame_head, framed, unsealed
from rollyard.wire.node import MAX_SNAPSHOT_BYTES, SnapshotHeader

CONTENT_TYPE = "application/zstd"
MAX_HEADER_BYTES = 64 << 10
SEND_SECONDS = 120.0
_CHUNK = 1 << 18
_BUDGET = web.AppKey("snapshot_budget", ByteBudget)
_SENDING = web.AppKey("snapshots_sent", ByteBudget)
"""Limits on the total bytes of the snapshots that are in the server's memory at the same time: of those that arrive, and of
those that are sent. What is sent to forks counts too."""


def routes() -> list[web.RouteDef]:
    return [
        web.put("/v1/node/snapshot", _put),
        web.get("/v1/node/run/snapshot", _get_last),
        web.get("/v1/rollouts/{id}/snapshots", _list),
        web.get("/v1/rollouts/{id}/snapshots/{turn}", _get),
    ]


def set_up(app: web.Application) -> None:
    app[_BUDGET] = ByteBudget(4 * MAX_SNAPSHOT_BYTES)
    app[_SENDING] = ByteBudget(4 * MAX_SNAPSHOT_BYTES)


async def _put(request: web.Request) -> web.Response:
    services, most = request.app[SERVICES], MAX_SNAPSHOT_BYTES + MAX_HEADER_BYTES
    async with request.app[_BUDGET].reserve(min(request.content_length or most, most)):
        head, _, archive = bytes(await request_bodies.read(request, most)).partition(b"\n")
        try:
            header = SnapshotHeader.from_wire(from_json(unsealed(head), allow_inf_nan=False))
        except (TypeError, ValueError) as error:
            raise Invalid(f"the body does not begin with a sealed SnapshotHeader: {error}") from None
        if bool(archive) == (header.error is not None):
            raise Invalid("a snapshot has either an archive or an error")
        digest = await asyncio.to_thread(lambda: hashlib.sha256(archive).hexdigest())
        if header.sha256 not in ("", digest):
            raise Invalid("the snapshot was damaged on its way: its digest does not match")
        await services.rollouts.store_snapshot(header, request[CLAIMS].subject, archive)
    return web.Response(status=204)


@accepts("namespace")
async def _list(request: web.Request) -> web.Response:
    """List the snapshots of a rollout's sandbox."""
    _, stored = await _stored(request)
    return web.json_response(RolloutSnapshots(snapshots=[one.about for one in stored]).model_dump(mode="json"))


@accepts("namespace")
async def _get(request: web.Request) -> web.StreamResponse:
    """Read the snapshot after a turn: a tar archive in zstd."""
    record, stored = await _stored(request)
    snapshot = snapshot_of_turn(record, stored, request.match_info["turn"])
    assert snapshot.blob is not None
    return await send_stored(request, [snapshot.blob], headers={"ETag": f'"{snapshot.blob.sha256}"'})


async def send_stored(
    request: web.Request, parts: Sequence[bytes | BlobRef], headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """Send bytes and stored data. Only some stored data are in memory at a time, and a client that does not read does not
    keep them there: after SEND_SECONDS its connection is closed."""
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, **(headers or {})})
    response.content_length = sum(part.length if isinstance(part, BlobRef) else len(part) for part in parts)
    store = request.app[SERVICES].store
    async with request.app[_SENDING].reserve(sum(part.length for part in parts if isinstance(part, BlobRef))):
        read = [memoryview(await store.packs.read(part) if isinstance(part, BlobRef) else part) for part in parts]
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await response.prepare(request)
                for data in read:
                    for at in range(0, len(data), _CHUNK):
                        await response.write(data[at : at + _CHUNK])
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
    return response


def frame_of(blob: BlobRef) -> list[bytes | BlobRef]:
    """Return the parts of a frame with stored data."""
    return [frame_head(blob.length), blob]


@accepts("namespace", "id", "fence")
async def _get_last(request: web.Request) -> web.StreamResponse:
    """Send the last snapshot of the lease's rollout, with which its EVAL begins."""
    record, services = await leased_rollout(request), request.app[SERVICES]
    stored = await services.store.rollouts.snapshots(record)
    while not stored:  # a rollout that scores an earlier one again
        earlier = RolloutRequest.model_validate_json(record.request).regrade_of
        if earlier is None:
            raise NotFound(f"rollout {record.id!r} has no snapshot of its RUN")
        record = await services.rollouts.get(record.namespace, earlier)
        stored = await services.store.rollouts.snapshots(record)
    return await for_node_agent(request, snapshot_of_turn(record, stored, str(stored[-1].about.turn)))


async def for_node_agent(request: web.Request, snapshot: StoredSnapshot) -> web.StreamResponse:
    """Send two frames: the description of the snapshot, and its archive."""
    assert snapshot.blob is not None
    about = framed(snapshot.about.model_dump_json().encode())
    return await send_stored(request, [about, *frame_of(snapshot.blob)])


async def _stored(request: web.Request) -> tuple[RolloutRecord, list[StoredSnapshot]]:
    services: Services = request.app[SERVICES]
    record = await services.rollouts.get(namespace_of(request), request.match_info["id"])
    return record, await services.store.rollouts.snapshots(record)
