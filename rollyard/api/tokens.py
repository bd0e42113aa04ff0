"""`POST /v1/tokens/rotation` makes a new key for the server's tokens."""

from __future__ import annotations

import pydantic
from aiohttp import web

from rollyard.api.error_status import validation_error
from rollyard.api.object_writes import read_body
from rollyard.api.services import SERVICES
from rollyard.kinds.token import RotationRequest


def routes() -> list[web.RouteDef]:
    return [web.post("/v1/tokens/rotation", _rotate)]


async def _rotate(request: web.Request) -> web.Response:
    """Rotate the tokens. The answer has the administrator's new token."""
    try:
        wanted = RotationRequest.model_validate(await read_body(request))
    except pydantic.ValidationError as error:
        raise validation_error(error, RotationRequest, "the rotation") from None
    result = await request.app[SERVICES].rotate_tokens(wanted)
    return web.json_response(result.model_dump())
