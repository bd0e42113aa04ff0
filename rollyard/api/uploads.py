"""Several uploads of a node agent in one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from aiohttp import web

from rollyard.api import request_bodies
from rollyard.api.error_status import status_body
from rollyard.core.errors import ApiError, BadRequest, Invalid, TooLarge
from rollyard.trajectory.frames import unframed
from rollyard.wire.node import MAX_RESULT_BYTES, MAX_RESULTS

U = TypeVar("U")


async def store_uploads(
    request: web.Request,
    read: Callable[[bytes], U],
    store: Callable[[list[U]], Awaitable[Sequence[ApiError | None]]],
) -> web.Response:
    """Read and store several uploads. For each, the answer has null if the upload was stored, else the `Status` of its
    error."""
    try:
        bodies = unframed(bytes(await request_bodies.read(request, MAX_RESULT_BYTES)))
    except ValueError as error:
        raise BadRequest(f"the body ends in the middle of a result: {error}") from None
    if len(bodies) > MAX_RESULTS:
        raise TooLarge(f"one request may have at most {MAX_RESULTS} results, but this one has {len(bodies)}")
    errors: dict[int, ApiError | None] = {}
    uploads: dict[int, U] = {}
    for i, body in enumerate(bodies):
        try:
            uploads[i] = read(body)
        except (Invalid, TooLarge) as refusal:
            errors[i] = refusal
    errors |= zip(uploads, await store(list(uploads.values())), strict=True)
    ordered = (errors[i] for i in range(len(bodies)))
    return web.json_response({"results": [None if e is None else status_body(e) for e in ordered]})
