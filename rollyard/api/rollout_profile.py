"""`GET /v1/rollouts/profile`: where the time and the tokens of the rollouts that match a search go."""

from __future__ import annotations

import asyncio

from aiohttp import web

from rollyard.api.costly_answers import costly
from rollyard.api.query_parameters import accepts
from rollyard.api.rollout_conditions import SEARCHED, conditions
from rollyard.api.services import SERVICES
from rollyard.server.rollouts.profile_sums import profile_sums

MOST = 20_000
"""Greatest number of rollouts that are summed up: the newest ones."""


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/rollouts/profile", _profile)]


@accepts(*SEARCHED)
@costly
async def _profile(request: web.Request) -> web.Response:
    """Sum up ended rollouts: seconds in each stage, seconds of RUN and tokens by part, tool calls, turns."""
    filter = conditions(request, MOST)
    matching, found = await request.app[SERVICES].store.rollouts.work(filter)
    text = await asyncio.to_thread(lambda: profile_sums(matching, found).model_dump_json())
    return web.Response(text=text, content_type="application/json")
