"""Routes of rollouts: submit, list, count, read, stream, cancel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from rollyard.api.costly_answers import costly, in_turn
from rollyard.api.long_responses import mark_long_lived
from rollyard.api.query_parameters import accepts, cursor, flag, integer, namespace_of, seconds
from rollyard.api.queue_view import queue_view
from rollyard.api.rollout_conditions import SEARCHED, conditions
from rollyard.api.services import SERVICES, Services
from rollyard.api.submit_body import read_requests
from rollyard.api.trajectories import (
    columns_response,
    portions,
    read_trajectory,
    trajectories_file,
    trajectory_texts,
    wants_columns,
)
from rollyard.api.unread_answers import send_part
from rollyard.core.errors import BadRequest, Expired, NotFound
from rollyard.kinds.base import Reason
from rollyard.kinds.failure_table import ENDINGS
from rollyard.kinds.rollout import KeptView, RolloutSummary, Stage, Status
from rollyard.kinds.rollout_history import LossSummary
from rollyard.server.rollouts.loss_sums import loss_sums
from rollyard.server.rollouts.results import decompress, view
from rollyard.server.rollouts.waiting_reason import explain, explain_parked, explain_preparing
from rollyard.store.base import RolloutFilter, RolloutRecord
from rollyard.store.rollout_search import GROUPED, METADATA
from rollyard.trajectory import artifact
from rollyard.trajectory.columns import CONTENT_TYPE, encode
from rollyard.trajectory.frames import framed

MAX_WAIT_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 10.0
DEFAULT_LIMIT, MAX_LIMIT = 500, 5000
FEW = 100
"""Rollouts of a list that waits for no turn."""
DEFAULT_ROWS = 50
"""Rows of a summary."""
LOSSES_SECONDS = 3600.0


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/rollouts", _submit),
        web.get("/v1/rollouts", _list),
        web.get("/v1/rollouts/counts", _counts),
        web.get("/v1/rollouts/summary", _summary),
        web.get("/v1/rollouts/losses", _losses),
        web.get("/v1/rollouts/cursor", _cursor),
        web.get("/v1/rollouts/stream", _stream),
        web.get("/v1/rollouts/{id}", _get),
        web.get("/v1/rollouts/{id}/history", _history),
        web.get("/v1/rollouts/{id}/artifact", _artifact),
        web.delete("/v1/rollouts", _cancel_matching),
        web.delete("/v1/rollouts/{id}", _cancel),
        web.get("/v1/endings", _endings),
    ]


@accepts()
async def _endings(request: web.Request) -> web.Response:
    """List every way in which a rollout can end: the failure table."""
    return web.json_response({"endings": [row.as_json() for row in ENDINGS.values()]})


@accepts("namespace")
async def _submit(request: web.Request) -> web.Response:
    """Accept one request, a list, or an object with `rollouts`. The answer 202 comes when the rollouts are on disk."""
    services, namespace = request.app[SERVICES], namespace_of(request)
    requests = await read_requests(request)
    await services.request_checks.admit(namespace, requests)
    accepted = await services.rollouts.submit(namespace, requests)
    rows = [
        {"id": r.id, "group": r.group, "sample_index": r.sample_index, "status": r.status.value, "created": new}
        for r, new in accepted
    ]
    return web.json_response({"rollouts": rows}, status=202)


@accepts(*SEARCHED, "sort", "after", "limit", "total")
async def _list(request: web.Request) -> web.Response:
    """List rollouts without their trajectories: in order of arrival, or sorted (`sort=tokens`, `sort=-tokens`). A sorted list
    has no next page. `total=true`: also the number of all that match."""
    services = request.app[SERVICES]
    limit, total = min(integer(request, "limit", DEFAULT_LIMIT, least=1), MAX_LIMIT), flag(request, "total")
    filter = conditions(request, limit)
    if not (filter.is_costly or total or limit > FEW):
        return await _listed(services, filter)

    async def with_total() -> web.Response:
        return await _listed(services, filter, await services.store.rollouts.count(filter) if total else None)

    return await in_turn(request, with_total)


async def _listed(services: Services, filter: RolloutFilter, total: int | None = None) -> web.Response:
    records = await services.rollouts.find(filter)
    is_sorted = filter.search is not None and filter.search.sort is not None
    following = records[-1].seq if len(records) == filter.limit and not is_sorted else None
    found: dict[str, Any] = {"rollouts": await _queued_views(services, records), "next": following}
    if total is not None:
        found["total"] = total
    return await _json_response(found)


@accepts(*SEARCHED, "by", "limit")
@costly
async def _summary(request: web.Request) -> web.Response:
    """Sum up ended rollouts by a field: reason, kind, pool, status, mode, group, task, or `metadata.NAME`."""
    by, limit = request.query.get("by", "reason"), min(integer(request, "limit", DEFAULT_ROWS, least=1), MAX_LIMIT)
    if by not in GROUPED and not (by.startswith(METADATA) and len(by) > len(METADATA)):
        raise BadRequest(f"by must be one of {', '.join(GROUPED)}, or metadata.NAME, not {by[:40]!r}")
    rows = await request.app[SERVICES].store.rollouts.summarize(conditions(request, limit), by, limit)
    text = await asyncio.to_thread(RolloutSummary(by=by, rows=rows).model_dump_json)
    return web.Response(text=text, content_type="application/json")


@accepts("namespace", "since")
@costly
async def _losses(request: web.Request) -> web.Response:
    """Count lost attempts and leases since a time (Unix seconds; default: an hour ago), by reason and node. At most the newest
    MAX_LIMIT rollouts with losses are read."""
    services = request.app[SERVICES]
    since = seconds(request, "since", max(0.0, services.clock.time() - LOSSES_SECONDS))
    found = await services.store.rollouts.losing_histories(namespace_of(request), since, MAX_LIMIT + 1)

    def made() -> str:
        rows = loss_sums(found[:MAX_LIMIT], since)
        return LossSummary(since=since, more=len(found) > MAX_LIMIT, rows=rows).model_dump_json()

    return web.Response(text=await asyncio.to_thread(made), content_type="application/json")


@accepts("namespace", "wait")
async def _get(request: web.Request) -> web.Response:
    """Read a rollout with its trajectory. `wait`: seconds to wait for the rollout's end."""
    services, id = request.app[SERVICES], request.match_info["id"]
    wait = min(seconds(request, "wait", 0.0), MAX_WAIT_SECONDS)
    if wait:
        mark_long_lived(request)
    record = await services.rollouts.ends.wait(namespace_of(request), id, wait)
    (rollout,) = await _queued_views(services, [record])
    if (found := services.node_agents.kept(record.key, record.pool_key)) is not None:
        agent, kept = found
        who = agent.identity
        view = KeptView(node=who.node, allocation=who.allocation, stage=kept.lease.stage, until=kept.until)
        rollout["kept"] = view.model_dump(mode="json")
    if wants_columns(request):
        return await columns_response(services, [record] if record.status.terminal else [], {"rollout": rollout})
    if not record.status.terminal:
        return await _json_response({"rollout": rollout, "trajectory": None})

    async def with_trajectory() -> web.Response:
        return await _json_response({"rollout": rollout, "trajectory": await read_trajectory(services, record)})

    return await in_turn(request, with_trajectory)


@accepts("namespace")
async def _history(request: web.Request) -> web.Response:
    """Read a rollout's history: leases, stages, endpoints, attempts, end."""
    history = await request.app[SERVICES].rollouts.history(namespace_of(request), request.match_info["id"])
    return web.json_response(history.model_dump(mode="json", exclude_none=True))


@accepts("namespace")
async def _artifact(request: web.Request) -> web.Response:
    """Read the artifact that EVAL scores: an object of name to text, or to `{"base64": ...}` for bytes."""
    services = request.app[SERVICES]
    record = await services.rollouts.get(namespace_of(request), request.match_info["id"])
    if record.artifact_deleted:
        raise Expired(
            f"the artifact of rollout {record.id!r} is deleted: the pool's artifactTtlSecondsAfterFinished has passed. Its "
            "trajectory stays. To have an artifact again, submit the task under another id, and raise the setting before"
        )
    if record.artifact is None:
        raise NotFound(f"rollout {record.id!r} has no artifact: it has not come to the end of RUN")
    return await _json_response(
        await services.store.packs.use(
            [record.artifact], lambda blobs: artifact.to_json(artifact.unpack(decompress(blobs[0])))
        )
    )


async def _json_response(body: dict[str, Any]) -> web.Response:
    """Return a JSON response, written in a thread: a hundred thousand tokens would block the event loop."""
    return web.Response(body=await asyncio.to_thread(to_json, body), content_type="application/json")


@accepts("namespace")
async def _cancel(request: web.Request) -> web.Response:
    """Cancel a rollout."""
    services = request.app[SERVICES]
    record = await services.rollouts.cancel(namespace_of(request), request.match_info["id"])
    return web.json_response(_view(services, record))


@accepts("namespace", "pool", "group")
async def _cancel_matching(request: web.Request) -> web.Response:
    """Cancel all unfinished rollouts of a group or a pool."""
    pool, group = request.query.get("pool"), request.query.get("group")
    if not pool and not group:
        raise BadRequest("name what to cancel: `group`, `pool` or both")
    live = tuple(status for status in Status if not status.terminal)
    filter = RolloutFilter(namespace=namespace_of(request), pool=pool, group=group, status=live)
    return web.json_response({"cancelled": await request.app[SERVICES].rollouts.cancel_matching(filter)})


@accepts("namespace", "pool", "group")
async def _counts(request: web.Request) -> web.Response:
    """Count the rollouts of a pool or a group: queued, in each stage, and by terminal status. Return also the mean
    reward."""
    services, query = request.app[SERVICES], request.query
    scope = (namespace_of(request), query.get("pool"), query.get("group"))
    counts: dict[str, Any] = {"queued": 0} | {s.value: 0 for s in Stage} | {s.value: 0 for s in Status if s.terminal}
    for (stage, status), count in (await services.store.rollouts.counts(*scope)).items():
        word = "queued" if status is Status.QUEUED else stage.value if status is Status.RUNNING else status.value
        counts[word] += count
    live = services.rollouts.leases.in_flight(namespace_of(request), query.get("pool"))
    if query.get("group") is None:  # leases have newer stages than the store, but cannot be counted by group
        counts |= {stage.value: n for stage, n in live.items()}
    counts["reward_mean"] = await services.store.rollouts.reward_mean(*scope)
    return web.json_response(counts)


@accepts()
async def _cursor(request: web.Request) -> web.Response:
    """Read the newest cursor of all namespaces, and the time at which it was read."""
    services = request.app[SERVICES]
    now = services.clock.time()  # before the cursor, so that what had ended by then is in
    return web.json_response({"cursor": await services.store.rollouts.newest_cursor(), "time": now})


@accepts("namespace", "pool", "group", "after", "upto", "trajectories")
async def _stream(request: web.Request) -> web.StreamResponse:
    """Send ended rollouts, each as a server-sent event, beginning after the cursor in `after` or Last-Event-ID.

    In the format of columns, the rollouts that are there are files of one or more, each preceded by its length. `upto`: cursor
    after which the answer ends, with an event `end`, or a file without samples.
    """
    services, query = request.app[SERVICES], request.query
    after = integer(request, "after", 0)
    if last := request.headers.get("Last-Event-ID"):
        after = cursor(last, "Last-Event-ID")
    upto = integer(request, "upto", 0) if "upto" in query else None
    if (furthest := max(after, upto or 0)) > (newest := await services.store.rollouts.newest_cursor()):
        raise Expired(
            f"cursor {furthest} is ahead of the newest one, {newest}. If a backup was restored, stream again "
            "from 0, and skip the ids that you already have"
        )
    trajectories = flag(request, "trajectories")
    columns = trajectories and wants_columns(request)
    mark_long_lived(request)
    kind = CONTENT_TYPE if columns else "text/event-stream"
    response = web.StreamResponse(headers={"Content-Type": kind, "Cache-Control": "no-cache"})
    await response.prepare(request)
    await response.write(framed(b"") if columns else b": rollouts\n\n")
    scope = (namespace_of(request), query.get("group"), query.get("pool"))
    found = services.rollouts.ends.stream(after, *scope, KEEP_ALIVE_SECONDS, upto=upto)
    async for records in found:
        for some in portions(records):
            if columns:
                about = {"cursors": [record.cursor for record in some]}
                await send_part(request, response, framed(await trajectories_file(services, some, about)))
            else:
                texts = await (trajectory_texts if trajectories else _view_texts)(services, some)
                events = (
                    f"id: {r.cursor}\nevent: rollout\ndata: {text}\n\n" for r, text in zip(some, texts, strict=True)
                )
                await send_part(request, response, "".join(events).encode())
        if not records:
            await response.write(framed(b"") if columns else b": nothing yet\n\n")
    # An explicit end, so that a reader can tell it from a broken connection.
    await response.write(framed(encode([], {"cursors": []})) if columns else b"event: end\ndata: {}\n\n")
    return response


async def _view_texts(services: Services, records: Sequence[RolloutRecord]) -> list[str]:
    return await asyncio.to_thread(lambda: [json.dumps(_view(services, record)) for record in records])


async def _queued_views(services: Services, records: Sequence[RolloutRecord]) -> list[dict[str, Any]]:
    queues: dict[str, list[RolloutRecord]] = {}
    parked = {r.id: since for r in records if (since := _parked_since(services, r)) is not None}
    for record in records:
        if record.status is Status.QUEUED or record.id in parked:
            queues.setdefault(record.pool, []).append(record)
    views = {pool: await queue_view(services, found[0].namespace, pool, found) for pool, found in queues.items()}

    def waiting(record: RolloutRecord) -> Reason | None:
        if record.id in parked:
            return explain_parked(record, views[record.pool], parked[record.id])
        if record.status is Status.RUNNING and record.stage is Stage.INIT:
            agent = services.node_agents.get(record.holder or "")
            return explain_preparing(agent) if agent is not None else None
        return explain(record, views.get(record.pool))

    def made() -> list[dict[str, Any]]:
        return [_view(services, r, waiting(r)) for r in records]

    return await asyncio.to_thread(made)


def _parked_since(services: Services, record: RolloutRecord) -> float | None:
    if record.status is not Status.RUNNING:
        return None
    return services.rollouts.leases.parked_since(record.key, record.fence)


def _view(services: Services, record: RolloutRecord, waiting: Reason | None = None) -> dict[str, Any]:
    lease = services.rollouts.leases.get(record.key)
    stage = lease.stage if lease is not None and lease.fence == record.fence else None
    return view(record, stage, waiting).model_dump(mode="json")
