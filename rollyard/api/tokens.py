"""`POST /v1/tokens/rotation` makes a new key for the server's tokens."""

from __future__ import annotations

from aiohttp import web

from rollyard.api.error_status import validated
from rollyard.api.object_writes import read_body
from rollyard.api.services import SERVICES
from rollyard.kinds.token import RotationRequest


def routes() -> list[web.RouteDef]:
    return [web.post("/v1/tokens/rotation", _rotate)]


async def _rotate(request: web.Request) -> web.Response:
    """Rotate the tokens. The answer has the administrator's new token."""
    wanted = validated(RotationRequest, await read_body(request), "the rotation")
    result = await request.app[SERVICES].rotate_tokens(wanted)
    return web.json_response(result.model_dump())
