"""The gateway's HTTP application. It has a route for each API, and sends errors in the format of the called API. The
status and the headers of a stream are sent together with its first events.

The process that runs the application provides the transport, and must set aiohttp's `handler_cancellation`. Then
aiohttp cancels the handler when a caller disconnects, and the call ends with the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from pydantic_core import from_json

from rollyard.core.errors import ApiError, TooLarge
from rollyard.core.http_1_0 import end_stream_by_closing
from rollyard.core.http_body import continue_on_demand, encoding_of, inflate, send_continue
from rollyard.gateway.apis.base import Exchange, answer_characters, json_bytes, openai_error
from rollyard.gateway.apis.chat import ChatExchange
from rollyard.gateway.apis.completions import CompletionExchange
from rollyard.gateway.apis.messages import MessagesExchange, anthropic_error
from rollyard.gateway.apis.responses import ResponsesExchange
from rollyard.gateway.requests.call_errors import GatewayError, bad_request, no_model, too_slow
from rollyard.gateway.requests.chat_request import ChatResponse, Piece, SendPiece
from rollyard.gateway.session.session import GatewaySession

log = logging.getLogger(__name__)

BODY_SECONDS = 120.0
"""A request that has not arrived completely after this time is refused, to free its memory."""
WRITE_STALL_SECONDS = 60.0
"""A caller counts as gone if a single write to it takes longer than this."""
PIECE_BYTES = 1 << 16
"""Greatest length of a single write of what is sent at the end of a call."""
SESSION_HEADER = "X-Rollyard-Session"
KEY_PREFIX = "session-"
FindSession = Callable[[web.Request, str | None], Awaitable[GatewaySession]]
"""Function that finds the session of a request. Its second argument is the session's name, or None if the request names
no session. Raises GatewayError."""
E = TypeVar("E", bound=Exchange)
MakeExchange = Callable[[dict[str, Any]], Exchange]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
APIS: dict[str, MakeExchange] = {
    "/v1/chat/completions": ChatExchange,
    "/v1/completions": CompletionExchange,
    "/v1/responses": ResponsesExchange,
    "/v1/messages": MessagesExchange,
}


def build(find: FindSession) -> web.Application:
    """Build the application. Every path also exists below `/s/{session}`, for callers that can set only a base URL.

    The code that runs the application must turn off aiohttp's `auto_decompress`: the handlers decompress bodies
    themselves, but only after authentication.
    """
    app = web.Application(middlewares=[_answer_refusals])
    app.on_response_prepare.append(end_stream_by_closing)
    front = _GatewayRoutes(find)
    for prefix in ("", "/s/{session}"):
        for path, exchange in APIS.items():
            app.router.add_post(prefix + path, front.handler_for(exchange), expect_handler=continue_on_demand)
        counting = f"{prefix}/v1/messages/count_tokens"
        app.router.add_post(counting, front.count_tokens, expect_handler=continue_on_demand)
        response = f"{prefix}/v1/responses/{{response}}"
        app.router.add_get(response, front.response)
        app.router.add_delete(response, front.delete_response)
        app.router.add_get(f"{prefix}/v1/models", front.models)
        app.router.add_get(f"{prefix}/v1/models/{{model:.+}}", front.model)
    return app


def named_session(request: web.Request) -> str | None:
    """Return the session's name from path, header or key; None if there is none."""
    if (by_path := request.match_info.get("session")) is not None:
        return by_path
    if (by_header := request.headers.get(SESSION_HEADER)) is not None:
        return by_header
    _, _, token = request.headers.get("Authorization", "").partition(" ")
    key = token.strip() or request.headers.get("X-Api-Key", "")
    return key.removeprefix(KEY_PREFIX) if key.startswith(KEY_PREFIX) else None


class _GatewayRoutes:
    def __init__(self, find: FindSession) -> None:
        self._find_session = find

    def handler_for(self, make: MakeExchange) -> Handler:
        async def serve(request: web.Request) -> web.StreamResponse:
            session = await self._session(request)
            session.check_limits(may_repeat=True)
            async with session.byte_budget.reserve(_max_body_bytes(request, session)):
                exchange = await _exchange(make, request, session)
                if exchange.stream:
                    return await _stream_response(request, session, exchange)
                answers = await _run_exchange(exchange, session, None)
                with _delivery(session, answers):
                    body = partial(_json_bytes, exchange, answers)
                    data = await session.run_for_body(body, answer_characters(answers))
                    response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
                    response.content_length = len(data)
                    await _write_rest(request, response, data)
                return response

        return serve

    async def count_tokens(self, request: web.Request) -> web.Response:
        session = await self._session(request)
        session.check_limits(counts=False)
        async with session.byte_budget.reserve(_max_body_bytes(request, session)):
            exchange = await _exchange(_token_count_exchange, request, session)
            with _errors_as_refusals():
                return web.json_response({"input_tokens": await session.prompt_tokens(exchange.request)})

    async def models(self, request: web.Request) -> web.Response:
        """List the models in one answer that fits OpenAI's and Anthropic's clients."""
        session = await self._session(request)
        name = session.config.model
        listed = {"object": "list", "data": [_model(session)], "has_more": False, "first_id": name, "last_id": name}
        return web.json_response(listed)

    async def model(self, request: web.Request) -> web.Response:
        session, name = await self._session(request), request.match_info["model"]
        if name != session.config.model:
            raise no_model(name, session.config.model)
        return web.json_response(_model(session))

    async def response(self, request: web.Request) -> web.Response:
        session, id = await self._session(request), request.match_info["response"]
        if request.query.get("stream") == "true":
            raise bad_request("a stored response cannot be streamed; read it without `stream`", param="stream")
        return web.json_response(session.responses.body(id))

    async def delete_response(self, request: web.Request) -> web.Response:
        session, id = await self._session(request), request.match_info["response"]
        session.responses.delete(id)
        return web.json_response({"id": id, "object": "response", "deleted": True})

    async def _session(self, request: web.Request) -> GatewaySession:
        return await self._find_session(request, named_session(request))


@web.middleware
async def _answer_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors in the format of the called API, also for a path that no API has."""
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        served = ", ".join([*APIS, "/v1/responses/ID", "/v1/messages/count_tokens", "/v1/models"])
        message = f"{request.method} {request.path} is not served; this gateway serves {served}"
        refusal = GatewayError(error.status, "invalid_request_error", message, code="unknown_url")
    except GatewayError as error:
        refusal = error
    # After an error with status 500, a retry would fail in the same way, so a header tells clients not to retry.
    headers = {"X-Should-Retry": "false"} if refusal.status == 500 else {}
    return web.json_response(_error_body(request, refusal), status=refusal.status, headers=headers)


def _error_body(request: web.Request, refusal: GatewayError) -> dict[str, Any]:
    """Build the body of an error. On a path that several APIs share, the headers show the client's API."""
    openais = any(f"/v1/{path}" in request.path for path in ("chat/", "completions", "responses"))
    anthropics = "/v1/messages/" in f"{request.path}/" or "anthropic-version" in request.headers
    return anthropic_error(refusal) if anthropics and not openais else openai_error(refusal)


async def _stream_response(request: web.Request, session: GatewaySession, exchange: Exchange) -> web.StreamResponse:
    """Stream the response. Raises GatewayError only if nothing has been sent, because the error can then still set the
    HTTP status."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

    async def send_piece(piece: Piece) -> None:
        await _write(request, response, exchange.text_events(piece))

    try:
        answers = await _run_exchange(exchange, session, send_piece)
    except GatewayError as refusal:
        if not response.prepared:
            raise
        await _write(request, response, exchange.error_events(refusal), last=True)
    else:
        with _delivery(session, answers):
            end = partial(exchange.end_events, answers)
            await _write_rest(request, response, await session.run_for_body(end, answer_characters(answers)))
    return response


async def _write_rest(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Write the rest of a response, in pieces, so that a slow caller that reads on is not cut off."""
    *pieces, last = (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))
    for piece in pieces:
        await _write(request, response, piece)
    await _write(request, response, last, last=True)


async def _write(request: web.Request, response: web.StreamResponse, data: bytes, *, last: bool = False) -> None:
    """Write a piece of a response. Raises ConnectionResetError if the caller reads nothing for too long."""
    try:
        async with asyncio.timeout(WRITE_STALL_SECONDS):
            if not response.prepared:
                await response.prepare(request)
            # The last bytes and the end of the response are one write. After the first of two writes, the caller would
            # wake up although the response has not ended.
            await (response.write_eof(data) if last else response.write(data))
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError(f"the caller read nothing for {WRITE_STALL_SECONDS:g} s") from None


@contextlib.contextmanager
def _delivery(session: GatewaySession, answers: Sequence[ChatResponse]) -> Iterator[None]:
    """Tell the session whether a call's answers were written within the block. If they were not, a repetition of the call
    gets the same answers."""
    try:
        yield
    except BaseException:
        session.not_delivered(answers)
        raise
    session.delivered(answers)


def _json_bytes(exchange: Exchange, answers: Sequence[ChatResponse]) -> bytes:
    return json_bytes(exchange.response_body(answers))


async def _run_exchange(
    exchange: Exchange, session: GatewaySession, on_piece: SendPiece | None
) -> Sequence[ChatResponse]:
    with _errors_as_refusals():
        return await exchange.run(session, on_piece)


@contextlib.contextmanager
def _errors_as_refusals() -> Iterator[None]:
    """Turn errors into GatewayErrors, so that callers receive them in the format of their API."""
    try:
        yield
    except (GatewayError, ConnectionError):  # ConnectionError: the caller is gone
        raise
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    except Exception as error:
        log.exception("the gateway failed on a call")
        raise GatewayError(
            500, "server_error", "the gateway failed on this call; the log of its process has the details"
        ) from error


def _max_body_bytes(request: web.Request, session: GatewaySession) -> int:
    """Return the number of bytes to reserve for the body: its Content-Length; the limit if the body is compressed or
    its length is unknown. Raises GatewayError if the Content-Length is too large."""
    most, length = session.max_body, request.content_length
    if length is not None and length > most:
        raise session.too_large()
    return most if length is None or "Content-Encoding" in request.headers else length


async def _exchange(make: Callable[[dict[str, Any]], E], request: web.Request, session: GatewaySession) -> E:
    """Read the body and make the exchange. Raises GatewayError."""
    data = await _read(request, session)
    with _errors_as_refusals():
        return await session.run_for_body(partial(_make_exchange, make, data), len(data))


async def _read(request: web.Request, session: GatewaySession) -> bytearray:
    """Read the body. Raises GatewayError."""
    data, most = bytearray(), session.max_body
    try:
        encoding = encoding_of(request.headers.get("Content-Encoding"))
        await send_continue(request)
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.content.iter_any():
                data += chunk
                if len(data) > most:
                    raise session.too_large()
        if encoding is not None:
            return await asyncio.to_thread(inflate, data, encoding, most)
    except TimeoutError:
        raise too_slow(BODY_SECONDS) from None
    except web.RequestPayloadError as error:
        raise bad_request(f"the body cannot be read: {error}") from None
    except TooLarge:
        raise session.too_large() from None
    except ApiError as error:  # the encoding is not supported, or the body is damaged
        raise GatewayError(error.code, "invalid_request_error", str(error)) from None
    return data


def _make_exchange(make: Callable[[dict[str, Any]], E], data: bytearray) -> E:
    try:
        body = from_json(data)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise bad_request("the body is nested too deeply") from None
        raise bad_request(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    return make(body)


def _token_count_exchange(body: dict[str, Any]) -> MessagesExchange:
    """Make the exchange of a request that counts tokens. Such a request has no `max_tokens`."""
    return MessagesExchange({"max_tokens": 1, **body})


def _model(session: GatewaySession) -> dict[str, Any]:
    """Describe the model in OpenAI's and Anthropic's fields. The creation time is the time at which the session was
    opened."""
    name, at = session.config.model, session.opened_at
    created = {"created": at, "created_at": datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")}
    return {"id": name, "object": "model", "type": "model", "display_name": name, "owned_by": "rollyard", **created}
