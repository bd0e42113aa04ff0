"""Errors as Kubernetes `Status` objects. Clients can branch on their `reason`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

import pydantic
from aiohttp import web
from pydantic import BaseModel

from rollyard.api.json_answer import json_answer
from rollyard.core.errors import ApiError, BadRequest, Expired, Invalid, MethodNotAllowed, NotFound, TooLarge
from rollyard.kinds.registry import BY_PLURAL
from rollyard.kinds.schema.validation import Problem, problems_of

SMALL_BYTES = 64 << 10
log = logging.getLogger(__name__)
NEW_NAME: web.RequestKey[str] = web.RequestKey("new_name", str)
"""Name of the object that the request creates."""
M = TypeVar("M", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def status_body(error: ApiError, request: web.Request | None = None) -> dict[str, Any]:
    """Return the error as a Status. Its details name the object of the request, as kubectl shows it."""
    details = _object_named(request, error) if request is not None else {}
    if error.causes:
        details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in error.causes]
    if error.retry_after is not None:
        details["retryAfterSeconds"] = error.retry_after
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": error.reason,
        "details": details,
        "code": error.code,
    }


def _object_named(request: web.Request, error: ApiError) -> dict[str, Any]:
    """Return the object's name, group and kind, if the path has them. Without them for an Invalid that has no causes,
    because kubectl would print the causes in place of the message."""
    path = request.match_info
    if not request.path.startswith(("/api/", "/apis/")) or "plural" not in path:
        return {}
    if isinstance(error, Invalid) and not error.causes:
        return {}
    kind = BY_PLURAL.get(path["plural"])
    word = kind.model_fields["kind"].default if kind is not None and isinstance(error, Invalid) else path["plural"]
    group = request.path.split("/")[2] if request.path.startswith("/apis/") else ""
    details = {"name": path.get("name") or request.get(NEW_NAME, ""), "group": group, "kind": word}
    return {name: text for name, text in details.items() if text}


def error_response(error: ApiError, request: web.Request | None = None) -> web.Response:
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else {}
    return json_answer(status_body(error, request), status=error.code, headers=headers)


def validated(model: type[M], body: Any, what: str, extra: Literal["ignore"] | None = None) -> M:
    """Return the model of a body. `what`: name of the body, in messages. `extra`: "ignore" to accept unknown fields.

    Raises Invalid with one cause for each of the first wrong fields, in the same words as for a manifest. If there are
    more wrong fields, one more cause contains the number of the remaining ones. If there are very many wrong fields,
    there is only one cause, which contains their number.
    """
    try:
        return model.model_validate(body, extra=extra)
    except pydantic.ValidationError as error:
        raise rejection(problems_of(model, error), what) from None


def rejection(problems: Sequence[Problem], what: str) -> Invalid:
    listed = "; ".join(map(str, problems))
    return Invalid(f"{what} is invalid: {listed}", causes=[p.cause() for p in problems])


@web.middleware
async def errors_as_status(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Outermost boundary of a request: every error becomes a Status."""
    try:
        response = await handler(request)
    except ApiError as error:
        response = error_response(error, request)
    except web.HTTPException as error:
        response = error_response(_from_aiohttp(error, request))
    except Exception as error:
        gone = request.transport is None or request.transport.is_closing()
        if not (gone and isinstance(error, ConnectionError)):  # a caller may disconnect while its response is sent
            log.exception("%s %s failed", request.method, request.path)
        response = error_response(ApiError("internal error; the server's log has the details"))
    if response.status >= 400 and not response.prepared and request.can_read_body:
        _close_after_response(request, response)
    return response


def _close_after_response(request: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after the response to a refused request, even if the rest of the body still arrives.

    The connection stays open only if the body is small, its size is known, and the status is neither 401 nor 408.
    """
    size = request.content_length
    if response.status in (401, 408) or size is None or size > SMALL_BYTES:
        response.force_close()
        request.protocol.close()


def _from_aiohttp(error: web.HTTPException, request: web.Request) -> ApiError:
    match error.status:
        case 404:
            return NotFound(f"there is no {request.path}; see /apis and /v1")
        case 405:
            return MethodNotAllowed(f"{request.path} does not support {request.method}")
        case 410:
            return Expired(error.reason)
        case 413:
            return TooLarge(error.text or "the body is too large")
        case _:
            return BadRequest(error.text or error.reason)
