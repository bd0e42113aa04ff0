"""`GET /v1/rollouts/ID/turns`: the saved turns of a rollout that has not ended, for people who look at it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import zstandard
from aiohttp import web

from rollyard.api.query_parameters import accepts, integer, namespace_of
from rollyard.api.services import SERVICES
from rollyard.core.errors import NotFound
from rollyard.store.saved_turn_table import SomeTurns

MOST_TURNS = 50
MOST_BYTES = 2 << 20
"""Size from which an answer gets no further turn."""


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/rollouts/{id}/turns", _turns)]


@accepts("namespace", "fence", "after")
async def _turns(request: web.Request) -> web.Response:
    """Read the turns that an unfinished rollout has saved, behind the first `after` ones. `fence`: of the answer before. If the
    rollout has another one meanwhile, its saved turns may have changed, and the answer begins with the first one."""
    namespace, id = namespace_of(request), request.match_info["id"]
    fence, after = integer(request, "fence", 0), integer(request, "after", 0)
    found = await request.app[SERVICES].store.rollouts.some_saved_turns(namespace, id, fence, after, MOST_TURNS)
    if found is None:
        raise NotFound(f"namespace {namespace} has no rollout {id!r}")
    text = await asyncio.to_thread(lambda: json.dumps(_body(found)))
    return web.Response(text=text, content_type="application/json")


def _body(found: SomeTurns) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    size = 0
    for number, body in found.turns:
        if size > MOST_BYTES:
            break
        data = zstandard.decompress(body)
        size += len(data)
        saved = json.loads(data)
        turns.append(
            {"number": number, "turn": saved["turn"], "weights_version": next(iter(saved["weights_versions"]), None)}
        )
    return {
        "fence": found.fence, "attempt": found.attempt, "status": found.status, "total": found.total, "turns": turns,
    }  # fmt: skip
