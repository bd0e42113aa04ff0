"""`/v1/history`: metrics of pools, endpoints and training steps over time. A gap is null, never 0."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import get_args

from aiohttp import web

from rollyard.api.json_answer import json_answer
from rollyard.api.query_parameters import accepts, flag, integer, namespace_of, seconds
from rollyard.api.services import SERVICES, Services
from rollyard.core.errors import BadRequest, NotFound
from rollyard.kinds.batch import BatchKey
from rollyard.kinds.metric_history import (
    ENDPOINT_METRICS,
    POOL_METRICS,
    BatchHistory,
    EndpointHistory,
    EndpointsHistory,
    MetricColumns,
    PastDecision,
    PoolHistory,
    PoolKind,
)
from rollyard.kinds.pool import PoolKey
from rollyard.server.batches.step_view import step_view
from rollyard.store.metric_buckets import ENDPOINTS, POOLS, Measure, Resolution, start_of
from rollyard.store.metric_tables import BucketRange, Rows, TrackKey

DEFAULT_SECONDS = 3600
MAX_BUCKETS = 2000
"""Greatest number of buckets in an answer. For a longer time the buckets get wider."""
MAX_STEPS = 10_000


def routes() -> list[web.RouteDef]:
    return [
        web.get("/v1/history/pools/{namespace}/{name}", _pool),
        web.get("/v1/history/endpoints/{namespace}/{name}", _endpoints),
        web.get("/v1/history/batches/{id}", _batch),
    ]


@accepts("kind", "since", "until", "step")
async def _pool(request: web.Request) -> web.Response:
    """Read a pool's metrics over time, and the changes of its desired size. `since`, `until`: Unix seconds, by default the last
    hour. `step`: least seconds of one value. `kind`: RolloutPool or InferencePool, needed only if there is one of each."""
    services, (namespace, name) = request.app[SERVICES], _names(request)
    key = await _pool_key(services, request)
    span = _span(services, request, POOLS)
    tables = services.store.metrics
    (rows,) = await tables.read([key], span)
    kind = _kind(key.kind)
    found = PoolHistory(
        **_times(span),
        kind=kind,
        namespace=namespace,
        name=name,
        metrics=_columns(rows, span, POOL_METRICS[kind]),
        decisions=[
            PastDecision(time=one.time, desired=one.desired, message=one.message)
            for one in await tables.decisions(*key[:3], span.since, span.until)
        ],
    )
    return json_answer(found.model_dump())


@accepts("since", "until", "step")
async def _endpoints(request: web.Request) -> web.Response:
    """Read the metrics of an InferencePool's endpoints over time, also of endpoints that are gone. The parameters are those of
    pools."""
    services, (namespace, name) = request.app[SERVICES], _names(request)
    tables = services.store.metrics
    span = _span(services, request, ENDPOINTS)
    keys = [key for key in await tables.tracks(namespace, name) if key.endpoint]
    present = services.endpoints.of_pool(PoolKey(namespace, name))
    if not keys and not present and await _known_kinds(services, namespace, name) != ["InferencePool"]:
        raise NotFound(
            f"there is no InferencePool {name!r} in namespace {namespace!r}, and no endpoint of it is recorded"
        )
    found = await tables.read(keys, span)

    def body() -> EndpointsHistory:
        shown = [
            EndpointHistory(id=key.endpoint, metrics=_columns(rows, span, ENDPOINT_METRICS))
            for key, rows in zip(keys, found, strict=True)
            if rows
        ]
        missing = {state.endpoint.id for state in present} - {key.endpoint for key in keys}
        return EndpointsHistory(
            **_times(span), namespace=namespace, pool=name, endpoints=shown, not_recorded=len(missing)
        )

    return json_answer((await asyncio.to_thread(body)).model_dump())


@accepts("namespace", "series", "limit")
async def _batch(request: web.Request) -> web.Response:
    """Read a batch's training steps: rewards, informative groups, staleness and lengths. `series=true`: the steps of all
    batches of its series."""
    services, key = request.app[SERVICES], BatchKey(namespace_of(request), request.match_info["id"])
    view = await services.batches.view(key)
    limit = integer(request, "limit", 1000, least=1, most=MAX_STEPS)
    only = None if flag(request, "series") else key.id
    records = await services.store.batches.training_steps(key.namespace, view.series, only, limit)
    steps = [step_view(record) for record in records]
    found = BatchHistory(id=key.id, namespace=key.namespace, pool=view.pool, series=view.series, steps=steps)
    return json_answer(found.model_dump())


def _names(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


async def _pool_key(services: Services, request: web.Request) -> TrackKey:
    """Return the pool that a request names: a present one, or a deleted one that still has metrics."""
    namespace, name = _names(request)
    kinds = set(await _known_kinds(services, namespace, name))
    kinds |= {key.kind for key in await services.store.metrics.tracks(namespace, name) if not key.endpoint}
    if (asked := request.query.get("kind")) is not None:
        kinds &= {_kind(asked)}
    if not kinds:
        raise NotFound(
            f"there is no {asked or 'pool'} {name!r} in namespace {namespace!r}, and no metrics of it are kept"
        )
    if len(kinds) > 1:
        raise BadRequest(f"there are two pools {name!r}; add kind=RolloutPool or kind=InferencePool")
    return TrackKey(kinds.pop(), namespace, name)


async def _known_kinds(services: Services, namespace: str, name: str) -> list[str]:
    """Return the kinds of the present pools of this name."""
    listed = [*await services.pools.rollout_pools(), *await services.pools.inference_pools()]
    return [pool.kind for pool in listed if pool.pool_key == (namespace, name)]


def _kind(text: str) -> PoolKind:
    for kind in get_args(PoolKind):
        if text == kind:
            return kind  # type: ignore[no-any-return]
    raise BadRequest(f"kind must be RolloutPool or InferencePool, not {text[:40]!r}")


def _span(services: Services, request: web.Request, resolutions: Sequence[Resolution]) -> BucketRange:
    """Return the buckets to read. Their width is the least that is kept for this time, is at least `step`, and gives at most
    MAX_BUCKETS."""
    now = services.clock.time()
    until = min(seconds(request, "until", now), now)
    since = seconds(request, "since", until - DEFAULT_SECONDS)
    asked = integer(request, "step", resolutions[0].step, least=1, most=31 * 86_400)
    if since >= until:
        raise BadRequest("since must be before until, and not in the future; both are Unix seconds")
    kept = [one for one in resolutions if now - since <= one.kept + one.step]
    base = (kept or resolutions)[0 if kept else -1].step
    step = math.ceil(max(asked, (until - since) / (MAX_BUCKETS - 1), base) / base) * base
    return BucketRange(start_of(since, step), start_of(until, step) + step, step)


def _times(span: BucketRange) -> dict[str, object]:
    times = list(range(span.since, span.until, span.step))
    return {"since": span.since, "until": span.until, "step": span.step, "times": times}


def _columns(rows: Rows, span: BucketRange, names: Sequence[str]) -> MetricColumns:
    """Return the buckets as columns, with null where there is no bucket."""
    by_start = dict(rows)
    buckets = [by_start.get(start) for start in range(span.since, span.until, span.step)]
    measures: list[tuple[Measure | None, ...]] = [bucket.measures if bucket else () for bucket in buckets]
    columns = [[row[i] if i < len(row) else None for row in measures] for i in range(len(names))]
    return MetricColumns(
        samples=[bucket.samples if bucket else 0 for bucket in buckets],
        mean={
            name: [None if m is None else m.mean for m in column] for name, column in zip(names, columns, strict=True)
        },
        max={
            name: [None if m is None else m.greatest for m in column]
            for name, column in zip(names, columns, strict=True)
        },
        weights_version=[(bucket.text or None) if bucket else None for bucket in buckets],
    )
