"""`…/inferencepools/NAME/weights/endpoints/ALLOCATION/ROUTE`: a trainer's calls to an engine that waits for weights.

These calls pass through the server, so a trainer needs only the token with which it began the update. The trainer
needs no connection to the engines' proxies, and no certificate or token of the proxies. Tensors for vLLM go directly to the
engine, over NCCL or CUDA IPC; tensors for the embedded engine pass through the server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from rollyard.api.object_writes import BASE
from rollyard.api.query_parameters import ANY, accepts
from rollyard.api.services import SERVICES
from rollyard.core.errors import ApiError, NotFound, Unavailable, error_from_reason
from rollyard.core.http_body import send_continue
from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.endpoint_state import EndpointState
from rollyard.trust.tls_contexts import client_ssl_context

HTTP: web.AppKey[aiohttp.ClientSession] = web.AppKey("transfer_http", aiohttp.ClientSession)
FORWARDED_HEADERS = ("Content-Type", "Content-Length", "Content-Encoding")


def routes() -> list[web.RouteDef]:
    path = f"{BASE}/namespaces/{{namespace}}/inferencepools/{{name}}/weights/endpoints/{{allocation}}/{{route}}"
    return [web.get(path, _relay), web.post(path, _relay)]


def set_up(app: web.Application) -> None:
    """Keep a client session for calls to the engines' proxies open while the application runs."""
    app.cleanup_ctx.append(_session)


async def _session(app: web.Application) -> AsyncIterator[None]:
    trust = client_ssl_context(app[SERVICES].authority.ca_pem)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)  # a call lasts as long as the engine needs
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as app[HTTP]:
        yield


@accepts(ANY)
async def _relay(request: web.Request) -> web.StreamResponse:
    """Pass a trainer's call to an engine that waits for weights."""
    endpoint = _state(request).endpoint
    headers = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
    await send_continue(request)
    try:
        async with request.app[HTTP].request(
            request.method,
            f"{endpoint.url}/{request.match_info['route']}",
            params=request.query,
            data=request.content if request.can_read_body else None,
            headers={**headers, "Authorization": f"Bearer {endpoint.token}"},
            allow_redirects=False,
        ) as answer:
            body = await answer.read()
            if answer.status >= 400:
                raise _error_response(answer, body)
            return web.Response(status=answer.status, body=body, content_type=answer.content_type)
    except aiohttp.ClientError as error:
        raise Unavailable(f"{endpoint.id} does not answer: {type(error).__name__}") from None


def _state(request: web.Request) -> EndpointState:
    info, endpoints = request.match_info, request.app[SERVICES].endpoints
    id, pool = f"{info['namespace']}/{info['allocation']}", PoolKey(info["namespace"], info["name"])
    state = endpoints.get(id)
    if state is None or state.pool != pool or not state.uid:
        there = ", ".join(s.allocation for s in endpoints.of_pool(pool) if s.uid) or "none"
        raise NotFound(f"inferencepool {pool.name!r} has no engine {info['allocation']!r}; it has: {there}")
    return state


def _error_response(answer: aiohttp.ClientResponse, body: bytes) -> ApiError:
    """Turn an error of the proxy or the engine into an ApiError."""
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = " ".join(body.decode(errors="replace").split())[:300]
    return error_from_reason(answer.status, "", message or f"the engine answered {answer.status}")
