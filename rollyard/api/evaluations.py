"""Routes of evaluations: create, list, read, compare, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from rollyard.api import request_bodies
from rollyard.api.costly_answers import costly
from rollyard.api.error_status import validated
from rollyard.api.evaluation_answers import EvaluationAnswers
from rollyard.api.query_parameters import accepts, integer, namespace_of, number
from rollyard.api.services import SERVICES, Services
from rollyard.core.errors import BadRequest, NotFound
from rollyard.kinds.base import WireModel
from rollyard.kinds.evaluation import FULL_REWARD, ROUNDING, EvaluatedTasks, EvaluationKey, EvaluationRequest
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.server.evaluations.evaluation_view import comparison, evaluated_tasks, summary, view
from rollyard.store.base import RolloutFilter
from rollyard.store.evaluation_store import EvaluationResult, EvaluationTally, StoredEvaluation

R = TypeVar("R")
DEFAULT_LISTED, MAX_LISTED = 100, 500
_ANSWERS = web.AppKey("evaluation_answers", EvaluationAnswers)


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/evaluations", _create),
        web.get("/v1/evaluations", _list),
        web.get("/v1/evaluations/{name}", _get),
        web.get("/v1/evaluations/{name}/tasks", _tasks),
        web.get("/v1/evaluations/{name}/comparison", _comparison),
        web.post("/v1/evaluations/{name}/repeat", _repeat),
        web.delete("/v1/evaluations/{name}", _delete),
    ]


def set_up(app: web.Application) -> None:
    app[_ANSWERS] = EvaluationAnswers()


@accepts("namespace")
async def _create(request: web.Request) -> web.Response:
    """Create an evaluation, whose rollouts the client submits. The answer is 201 if the evaluation is new, 200 if an equal
    one exists."""
    services, namespace = request.app[SERVICES], namespace_of(request)
    wanted = validated(EvaluationRequest, await request_bodies.read_message(request), "the evaluation")
    example = {"pool": wanted.pool, "task": {"kind": "math"}, **wanted.rollout_fields()}
    checked = validated(RolloutRequest, example, "the evaluation")
    await services.request_checks.check_pools(namespace, [checked])
    new = await services.store.evaluations.create(namespace, wanted, services.clock.time())
    stored = await _find(services, EvaluationKey(namespace, wanted.name))
    found = summary(stored, await services.store.evaluations.tally(stored))
    return web.json_response(found.model_dump(mode="json"), status=201 if new else 200)


@accepts("namespace", "limit")
@costly
async def _list(request: web.Request) -> web.Response:
    """List evaluations, newest first."""
    services, namespace = request.app[SERVICES], namespace_of(request)
    limit = min(integer(request, "limit", DEFAULT_LISTED, least=1), MAX_LISTED)
    found = [summary(*one) for one in await services.store.evaluations.newest(namespace, limit)]
    return web.json_response({"evaluations": [one.model_dump(mode="json") for one in found]})


@accepts("namespace", "solved_at", "by")
@costly
async def _get(request: web.Request) -> web.Response:
    """Read an evaluation with its statistics. `solved_at`: least reward of a solved task. `by`: `kind`, or a name of the tasks'
    metadata, whose values have statistics of their own."""
    services, key, solved_at, by = request.app[SERVICES], _key(request), _solved_at(request), request.query.get("by")
    stored, tally = await _with_tally(services, key)
    return await _answer(
        request,
        ("view", key, stored.created_at, tally, solved_at, by),
        lambda: services.store.evaluations.results(key),
        lambda results: view(stored, tally, results, solved_at, by),
    )


@accepts("namespace")
@costly
async def _tasks(request: web.Request) -> web.Response:
    """Read an evaluation's results, task by task."""
    services, key = request.app[SERVICES], _key(request)
    stored, tally = await _with_tally(services, key)
    return await _answer(
        request,
        ("tasks", key, stored.created_at, tally),
        lambda: services.store.evaluations.results(key),
        lambda results: EvaluatedTasks(tasks=evaluated_tasks(stored.request, results)),
    )


@accepts("namespace", "with", "solved_at")
@costly
async def _comparison(request: web.Request) -> web.Response:
    """Compare an evaluation with another one, task by task. `with`: name of the other one."""
    services, other = request.app[SERVICES], request.query.get("with")
    if not other:
        raise BadRequest("name the evaluation to compare with: `with`")
    solved_at, keys = _solved_at(request), (_key(request), EvaluationKey(namespace_of(request), other))
    (first, before), (second, after) = [await _with_tally(services, key) for key in keys]

    async def read() -> list[list[EvaluationResult]]:
        return [await services.store.evaluations.results(key) for key in keys]

    return await _answer(
        request,
        ("comparison", keys, first.created_at, before, second.created_at, after, solved_at),
        read,
        lambda results: comparison((first, results[0]), (second, results[1]), solved_at),
    )


@accepts("namespace")
async def _repeat(request: web.Request) -> web.Response:
    """Make room for other rollouts in the places of those that do not count: those without a reward, and those of another
    weights version. The client submits them. Nothing is done while the evaluation is running."""
    services, key = request.app[SERVICES], _key(request)
    if await services.store.evaluations.repeat_uncounted(key) is None:
        raise _not_found(key)
    stored = await _find(services, key)
    found = summary(stored, await services.store.evaluations.tally(stored))
    return web.json_response(found.model_dump(mode="json"))


@accepts("namespace")
async def _delete(request: web.Request) -> web.Response:
    """Delete an evaluation with its results, and cancel its unfinished rollouts."""
    services, key = request.app[SERVICES], _key(request)
    if not await services.store.evaluations.delete(key):
        raise _not_found(key)
    live = tuple(status for status in Status if not status.terminal)
    filter = RolloutFilter(namespace=key.namespace, group=key.name, status=live)
    return web.json_response({"name": key.name, "cancelled": await services.rollouts.cancel_matching(filter)})


def _key(request: web.Request) -> EvaluationKey:
    return EvaluationKey(namespace_of(request), request.match_info["name"])


async def _find(services: Services, key: EvaluationKey) -> StoredEvaluation:
    stored = await services.store.evaluations.get(key)
    if stored is None:
        raise _not_found(key)
    return stored


async def _with_tally(services: Services, key: EvaluationKey) -> tuple[StoredEvaluation, EvaluationTally]:
    stored = await _find(services, key)
    return stored, await services.store.evaluations.tally(stored)


async def _answer(
    request: web.Request, key: object, read: Callable[[], Awaitable[R]], make: Callable[[R], WireModel]
) -> web.Response:
    body = await request.app[_ANSWERS].get(repr(key), read, make)
    return web.Response(body=body, content_type="application/json")


def _not_found(key: EvaluationKey) -> NotFound:
    return NotFound(f"evaluation {key.name!r} not found in namespace {key.namespace!r}")


def _solved_at(request: web.Request) -> float:
    given = number(request, "solved_at")
    return FULL_REWARD - ROUNDING if given is None else given
