"""Forks: rollouts that go on from a turn of another rollout. They are checked when they are submitted, and their node agents
read the other rollout here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from rollyard.api.leased_rollout import leased_rollout
from rollyard.api.query_parameters import accepts
from rollyard.api.services import SERVICES, Services
from rollyard.api.snapshots import for_node_agent, frame_of, send_stored, snapshot_of_turn
from rollyard.core.errors import ApiError, Cause, Invalid, NotFound
from rollyard.kinds.rollout import ForkPoint, RolloutRequest
from rollyard.server.rollouts.results import turns
from rollyard.store.base import BlobRef, RolloutRecord, StoredSnapshot
from rollyard.trajectory.frames import framed

MAX_ANCESTORS = 64
_FIELD = "agent.fork_from"


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/node/fork", _get_ancestors), web.get("/v1/node/fork/snapshot", _get_snapshot)]


async def check_forks(services: Services, namespace: str, requests: Sequence[RolloutRequest]) -> None:
    """Raise Invalid for a request that goes on from a turn from which no rollout can go on. A request that attaches to an
    existing rollout is not checked."""
    for request in requests:
        if request.agent.fork_from is None or await _exists(services, namespace, request):
            continue
        try:
            await _check(services, namespace, request, request.agent.fork_from)
        except ApiError as error:
            raise Invalid(str(error), causes=[Cause(_FIELD, str(error))]) from None


async def _exists(services: Services, namespace: str, request: RolloutRequest) -> bool:
    id = f"{request.id}.0" if request.n > 1 else request.id
    return request.id is not None and await services.store.rollouts.get(namespace, str(id)) is not None


async def _check(services: Services, namespace: str, request: RolloutRequest, point: ForkPoint) -> None:
    parent, _ = await _fork_point(services, namespace, point)
    if parent.pool != request.pool:
        raise Invalid(
            f"rollout {parent.id!r} ran in pool {parent.pool!r}; a rollout that goes on from it needs this pool"
        )
    theirs = RolloutRequest.model_validate_json(parent.request)
    if theirs.task != request.task:
        raise Invalid(f"rollout {parent.id!r} had another task; a rollout that goes on from it needs the same task")
    if theirs.agent.command is not None:
        raise Invalid(
            f"rollout {parent.id!r} ran a command, which has a conversation of its own; fork from the built-in loop"
        )
    assert parent.result is not None
    if await services.store.packs.use([parent.result], lambda blobs: _ends(turns(blobs[0]), point.turn)):
        raise Invalid(
            f"turn {point.turn} of rollout {parent.id!r} ended the conversation: it has no tool calls, or the limit of "
            "tokens cut it off; fork from an earlier turn"
        )
    if len(await _ancestors(services, namespace, point)) > MAX_ANCESTORS:
        raise Invalid(f"at most {MAX_ANCESTORS} rollouts may go on one from another; begin with a rollout of its own")


def _ends(turns: Sequence[Mapping[str, Any]], number: int) -> bool:
    """Return whether a turn ended the conversation. The node agent checks the rest, because only it can repeat the turns."""
    turn = turns[number - 1] if number <= len(turns) else None
    return turn is not None and (turn["finish_reason"] == "length" or not turn.get("tool_results"))


async def _fork_point(services: Services, namespace: str, point: ForkPoint) -> tuple[RolloutRecord, StoredSnapshot]:
    record = await services.store.rollouts.get(namespace, point.rollout)
    if record is None:
        raise NotFound(
            f"there is no rollout {point.rollout!r} to fork from; results are deleted after the pool's "
            "`ttlSecondsAfterFinished`, and after their batch has acknowledged them"
        )
    if not record.status.terminal:
        raise Invalid(f"rollout {record.id!r} has not ended yet; fork from it when it has")
    if record.result is None:
        raise NotFound(f"rollout {record.id!r} ended {record.status} without a stored conversation; fork from another")
    return record, snapshot_of_turn(record, await services.store.rollouts.snapshots(record), str(point.turn))


async def _ancestors(
    services: Services, namespace: str, point: ForkPoint | None
) -> list[tuple[ForkPoint, RolloutRecord]]:
    """Return the rollouts from which a rollout goes on, each with its last turn, the first one first."""
    found: list[tuple[ForkPoint, RolloutRecord]] = []
    while point is not None and len(found) <= MAX_ANCESTORS:
        record, _ = await _fork_point(services, namespace, point)
        found.append((point, record))
        point = RolloutRequest.model_validate_json(record.request).agent.fork_from
    return found[::-1]


@accepts("namespace", "id", "fence")
async def _get_ancestors(request: web.Request) -> web.StreamResponse:
    """Send the rollouts from which the lease's rollout goes on: for each two frames, its ForkPoint and its result."""
    services, record, point = await _leased_fork(request)
    parts: list[bytes | BlobRef] = []
    for ancestor, found in await _ancestors(services, record.namespace, point):
        assert found.result is not None
        parts += [framed(json.dumps(ancestor.model_dump()).encode()), *frame_of(found.result)]
    return await send_stored(request, parts, {"Content-Type": "application/octet-stream"})


@accepts("namespace", "id", "fence")
async def _get_snapshot(request: web.Request) -> web.StreamResponse:
    """Send the snapshot from which the lease's rollout goes on: its image in a header, and its archive."""
    services, record, point = await _leased_fork(request)
    _, snapshot = await _fork_point(services, record.namespace, point)
    return await for_node_agent(request, snapshot)


async def _leased_fork(request: web.Request) -> tuple[Services, RolloutRecord, ForkPoint]:
    record = await leased_rollout(request)
    point = RolloutRequest.model_validate_json(record.request).agent.fork_from
    if point is None:
        raise Invalid(f"rollout {record.id} goes on from no other rollout")
    return request.app[SERVICES], record, point
