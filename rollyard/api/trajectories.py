"""Trajectories in responses: as JSON, or as one file of columns if the `Accept` header requests columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from aiohttp import hdrs, web
from pydantic_core import to_json

from rollyard.api.services import Services
from rollyard.server.rollouts.results import decompress, trajectory
from rollyard.store.base import RolloutRecord
from rollyard.trajectory.columns import CONTENT_TYPE, Columns, join

T = TypeVar("T")
PORTION_BYTES = 256 << 10
"""Stored bytes of the trajectories that a stream has in memory at a time, unless one alone is larger."""


def wants_columns(request: web.Request) -> bool:
    """Whether the `Accept` header requests columns. `*/*` requests JSON."""
    accepted = ",".join(request.headers.getall(hdrs.ACCEPT, ()))
    return any(one.partition(";")[0].strip().lower() == CONTENT_TYPE for one in accepted.split(","))


async def read_trajectory(services: Services, record: RolloutRecord) -> dict[str, Any]:
    """Return the trajectory of an ended rollout as JSON. Raises Unavailable if the stored result cannot be read."""
    return await _use_columns(services, [record], lambda columns: columns.documents()[0])


async def trajectory_texts(services: Services, records: Sequence[RolloutRecord]) -> list[str]:
    """Do the same as `read_trajectory` for several rollouts, and return JSON texts."""
    return await _use_columns(services, records, lambda columns: [to_json(one).decode() for one in columns.documents()])


def portions(records: Sequence[RolloutRecord]) -> Iterator[Sequence[RolloutRecord]]:
    """Yield the ended rollouts in portions whose stored trajectories have at most PORTION_BYTES, or that are one rollout."""
    first = size = 0
    for i, record in enumerate(records):
        own = record.result.length if record.result is not None else 0
        if i > first and size + own > PORTION_BYTES:
            yield records[first:i]
            first, size = i, 0
        size += own
    if records:
        yield records[first:]


async def distinct_tokens(services: Services, record: RolloutRecord) -> list[int]:
    """Return the ids that occur in the trajectory of an ended rollout. Raises Unavailable if it cannot be read."""
    return await _use_columns(services, [record], lambda columns: sorted(set(columns.token_ids.tolist())))


async def trajectories_file(
    services: Services, records: Sequence[RolloutRecord], about: Mapping[str, Any] | None = None
) -> bytes:
    """Return a file with the trajectories of ended rollouts, in order. `about`: the other fields of the response."""
    return await _use_columns(services, records, lambda columns: replace(columns, about=about or {}).to_bytes())


async def columns_response(
    services: Services, records: Sequence[RolloutRecord], about: Mapping[str, Any]
) -> web.Response:
    """Return a response with the file of `trajectories_file`."""
    return web.Response(body=await trajectories_file(services, records, about), content_type=CONTENT_TYPE)


async def _use_columns(services: Services, records: Sequence[RolloutRecord], use: Callable[[Columns], T]) -> T:
    """Call `use` in a thread with the trajectories of these ended rollouts, and return its result."""

    def unpacked(frames: list[bytes]) -> T:
        rest = iter(frames)
        outcomes = [decompress(next(rest)) if record.result is not None else None for record in records]
        return use(join(list(map(trajectory, records, outcomes))))

    return await services.store.packs.use([r.result for r in records if r.result is not None], unpacked)
