"""Routes of batches: create, list, read, read groups, stream groups, acknowledge, cancel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from rollyard.api import request_bodies
from rollyard.api.error_status import validated
from rollyard.api.long_responses import mark_long_lived
from rollyard.api.query_parameters import accepts, cursor, integer, namespace_of, seconds
from rollyard.api.services import SERVICES, Services
from rollyard.api.trajectories import columns_response, read_trajectory, wants_columns
from rollyard.api.unread_answers import send_part
from rollyard.core.errors import BadRequest, Expired, Invalid, TooLarge
from rollyard.kinds.batch import Acknowledgement, BatchKey, BatchRequest, BatchView
from rollyard.kinds.installed_task_fields import check_tasks, offers_tools
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.task import Task
from rollyard.server.batches.task_lines import MAX_TASK_LINE_BYTES
from rollyard.store.base import RolloutRecord
from rollyard.store.batch_records import GroupRecord

MAX_BODY_BYTES = 64 << 20
MAX_WAIT_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 10.0
DEFAULT_GROUPS, MAX_GROUPS = 16, 256
MAX_PAGE_BYTES = 8 << 20
"""Greatest size of the compressed trajectories in one response. A group above this size is sent alone."""
MAX_LISTED = 500


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/batches", _create),
        web.get("/v1/batches", _list),
        web.get("/v1/batches/{id}", _get),
        web.delete("/v1/batches/{id}", _cancel),
        web.get("/v1/batches/{id}/groups", _groups),
        web.get("/v1/batches/{id}/stream", _stream),
        web.post("/v1/batches/{id}/acknowledge", _acknowledge),
    ]


def _key(request: web.Request) -> BatchKey:
    return BatchKey(namespace_of(request), request.match_info["id"])


@accepts("namespace")
async def _create(request: web.Request) -> web.Response:
    """Create a batch. The answer is 201 if the batch is new, 200 if a batch with the same id and body exists."""
    services, namespace = request.app[SERVICES], namespace_of(request)
    wanted = await _read_request(request)
    pool = await _check(services, namespace, wanted)
    tasks = await request_bodies.run_in_parser_thread(lambda: [task.canonical() for task in wanted.tasks or ()])
    if (large := max(map(len, tasks), default=0)) > MAX_TASK_LINE_BYTES:
        raise Invalid(
            f"a task may have at most {MAX_TASK_LINE_BYTES} bytes, but one has {large}; put large data into the image"
        )
    view, new = await services.batches.create(
        namespace, wanted, tasks, engine_priority=await services.request_checks.engines_take_priority(pool)
    )
    return _view_response(view, status=201 if new else 200)


async def _read_request(request: web.Request) -> BatchRequest:
    data = await request_bodies.read(request, MAX_BODY_BYTES)
    if not request_bodies.has_few_values(data):
        raise TooLarge(
            f"a batch may have at most {request_bodies.MAX_VALUES} values; upload the tasks as a dataset "
            "(PUT /v1/datasets/NAME) and send its name"
        )
    body = await request_bodies.run_in_parser_thread(request_bodies.parse, data)
    return await request_bodies.run_in_parser_thread(validated, BatchRequest, body, "the batch")


async def _check(services: Services, namespace: str, wanted: BatchRequest) -> RolloutPool:
    """Check the pool and the tasks; return the pool. Raises Invalid."""
    tasks = wanted.tasks or []
    by_kind = {task.kind: i for i, task in reversed(list(enumerate(tasks)))}
    samples = {kind: tasks[i] for kind, i in by_kind.items()}
    if (
        wanted.dataset is not None
        and (there := await services.store.batches.dataset(namespace, wanted.dataset.name)) is not None
    ):
        samples = {kind: Task(kind=kind) for kind in there.kinds}
    requests = [wanted.rollouts("check", task) for task in samples.values()]
    checks = services.request_checks
    pools = await checks.check_pools(namespace, requests or [wanted.rollouts("check", Task(kind="math"))])
    place = "tasks" if wanted.tasks is not None else "dataset"
    checks.check_kinds(requests, pools, place)
    with_tools = next((task for task in [*tasks, *samples.values()] if offers_tools(task)), None)
    if with_tools is not None:
        await checks.check_tools([wanted.rollouts("check", with_tools)], pools, place)
    await request_bodies.run_in_parser_thread(check_tasks, tasks, "tasks[{}]")
    checks.check_needs([(task, pools[wanted.pool]) for task in tasks], "tasks[{}]")
    checks.check_roles([(i, task, pools[wanted.pool]) for i, task in enumerate(tasks)], "tasks[{}]")
    return pools[wanted.pool]


@accepts("namespace", "series", "limit")
async def _list(request: web.Request) -> web.Response:
    """List batches, newest first. `series`: only those of this series."""
    limit = min(integer(request, "limit", 100, least=1), MAX_LISTED)
    views = await request.app[SERVICES].batches.views(namespace_of(request), limit, request.query.get("series"))
    return web.json_response({"batches": [view.model_dump(mode="json") for view in views]})


@accepts("namespace")
async def _get(request: web.Request) -> web.Response:
    """Read a batch's state."""
    return _view_response(await request.app[SERVICES].batches.view(_key(request)))


@accepts("namespace", "rollouts")
async def _cancel(request: web.Request) -> web.Response:
    """End a batch. `rollouts=cancel` cancels its unfinished groups. By default these groups wait for the next batch of
    the series, if the request of the ended batch has `carry_over: keep`."""
    word = request.query.get("rollouts", "keep")
    if word not in ("keep", "cancel"):
        raise BadRequest(f"rollouts must be keep or cancel, not {word[:40]!r}")
    return _view_response(await request.app[SERVICES].batches.cancel(_key(request), keep=word == "keep"))


@accepts("namespace")
async def _acknowledge(request: web.Request) -> web.Response:
    """Acknowledge that the trainer has used all groups up to a delivery number."""
    body = validated(Acknowledgement, await request_bodies.read_message(request), "the acknowledgement")
    return _view_response(await request.app[SERVICES].batches.acknowledge(_key(request), body.upto))


@accepts("namespace", "after", "wait", "limit")
async def _groups(request: web.Request) -> web.Response:
    """Read the groups after delivery number `after`, with their trajectories. If there are none yet, the request waits
    up to `wait` seconds for one."""
    services, after = request.app[SERVICES], integer(request, "after", 0)
    wait = min(seconds(request, "wait", 0.0), MAX_WAIT_SECONDS)
    limit = min(integer(request, "limit", DEFAULT_GROUPS, least=1), MAX_GROUPS)
    if wait:
        mark_long_lived(request)
    found, batch = await _next_groups(services, _key(request), after, limit, wait)
    chosen: list[tuple[GroupRecord, list[RolloutRecord]]] = []
    size = 0
    for group in found:
        records = await _rollouts_of(services, group)
        size += sum(record.result.length for record in records if record.result is not None)
        if chosen and size > MAX_PAGE_BYTES:
            break
        chosen.append((group, records))
    page = {"next": chosen[-1][0].delivery if chosen else after, "batch": batch.model_dump(mode="json")}
    if wants_columns(request):
        about = [{**_group_fields(group), "rollouts": len(records)} for group, records in chosen]
        every = [record for _, records in chosen for record in records]
        return await columns_response(services, every, {"groups": about, **page})
    bodies = [await _group_body(services, group, records) for group, records in chosen]
    text = await asyncio.to_thread(json.dumps, {"groups": bodies, **page})
    return web.Response(text=text, content_type="application/json")


@accepts("namespace", "after")
async def _stream(request: web.Request) -> web.StreamResponse:
    """Send delivered groups, each as a server-sent event. Begin after the delivery number in `after` or Last-Event-ID."""
    services, key, after = request.app[SERVICES], _key(request), integer(request, "after", 0)
    if last := request.headers.get("Last-Event-ID"):
        after = cursor(last, "Last-Event-ID")
    found, batch = await _next_groups(services, key, after, 1, 0.0)
    mark_long_lived(request)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    await response.write(b": groups\n\n")
    while found or not batch.all_delivered:
        if not found:
            await response.write(b": nothing yet\n\n")
        for group in found:
            body = await _group_body(services, group, await _rollouts_of(services, group))
            text = await asyncio.to_thread(json.dumps, body)
            await send_part(request, response, f"id: {group.delivery}\nevent: group\ndata: {text}\n\n".encode())
            after = body["delivery"]
        found, batch = await services.batches.groups(key, after, 1, KEEP_ALIVE_SECONDS)
    await response.write(f"event: end\ndata: {batch.model_dump_json()}\n\n".encode())
    return response


async def _next_groups(
    services: Services, key: BatchKey, after: int, limit: int, wait: float
) -> tuple[list[GroupRecord], BatchView]:
    now = await services.batches.view(key)
    if after > now.delivered:
        raise Expired(
            f"batch {key.id!r} has delivered {now.delivered} groups, so nothing follows {after}. If a backup was restored, "
            f"read again from {now.delivered}, and skip the groups that you already have"
        )
    return await services.batches.groups(key, after, limit, wait)


async def _rollouts_of(services: Services, group: GroupRecord) -> list[RolloutRecord]:
    """Return the group's rollouts. Raises Expired if some are deleted."""
    records = await services.batches.rollouts_of(group)
    if len(records) < group.n:
        raise Expired(
            f"the rollouts of group {group.id} (delivery {group.delivery}) are deleted: it was acknowledged, or the pool's "
            f"ttlSecondsAfterFinished has passed; read the groups after {group.delivery}"
        )
    return records


async def _group_body(services: Services, group: GroupRecord, records: Sequence[RolloutRecord]) -> dict[str, Any]:
    """Return a group as JSON with its trajectories."""
    return {**_group_fields(group), "rollouts": [await read_trajectory(services, record) for record in records]}


def _group_fields(group: GroupRecord) -> dict[str, Any]:
    return {
        "delivery": group.delivery,
        "id": group.id,
        "task_index": group.task_index,
        "drawn_at": group.drawn_at,
        "staleness": group.staleness,
    }


def _view_response(view: BatchView, status: int = 200) -> web.Response:
    return web.json_response(view.model_dump(mode="json"), status=status)
