"""Trajectories in responses: as JSON, or as one file of columns if the `Accept` header requests columns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from aiohttp import hdrs, web
from aiohttp.payload import BytesIOPayload

from rollyard.api.services import Services
from rollyard.server.rollouts.results import decompress, trajectory, trajectory_columns
from rollyard.server.store.base import RolloutRecord
from rollyard.wire.columns import CONTENT_TYPE, join


def wants_columns(request: web.Request) -> bool:
    """Whether the `Accept` header requests columns. `*/*` requests JSON."""
    accepted = ",".join(request.headers.getall(hdrs.ACCEPT, ()))
    return any(one.partition(";")[0].strip().lower() == CONTENT_TYPE for one in accepted.split(","))


async def read_trajectory(services: Services, record: RolloutRecord) -> dict[str, Any]:
    """Return the trajectory of an ended rollout as JSON. Raises Unavailable if the stored result cannot be read."""
    outcome = await _stored(services, record)
    return await asyncio.to_thread(lambda: trajectory(record, _unpacked(outcome)))


async def trajectories_file(
    services: Services, records: Sequence[RolloutRecord], about: Mapping[str, Any] | None = None
) -> bytes:
    """Return a file with the trajectories of ended rollouts, in order. `about`: the other fields of the response."""
    outcomes = await asyncio.gather(*(_stored(services, record) for record in records))

    def made() -> bytes:
        found = (trajectory_columns(r, _unpacked(o)) for r, o in zip(records, outcomes, strict=True))
        return join(list(found), about).to_bytes()

    return await asyncio.to_thread(made)


async def columns_response(
    services: Services, records: Sequence[RolloutRecord], about: Mapping[str, Any]
) -> web.Response:
    """Return a response with the file of `trajectories_file`.

    The file is sent in pieces, because one large write would block the event loop.
    """
    data = await trajectories_file(services, records, about)
    return web.Response(body=BytesIOPayload(BytesIO(data), content_type=CONTENT_TYPE))


async def _stored(services: Services, record: RolloutRecord) -> bytes | None:
    return await services.store.read_blob(record.result) if record.result is not None else None


def _unpacked(frame: bytes | None) -> bytes | None:
    return decompress(frame) if frame is not None else None
