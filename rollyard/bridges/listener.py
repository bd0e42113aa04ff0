"""A plain HTTP listener for frameworks that can send no token and know no TLS. It serves one user of this machine."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from rollyard.core.errors import ApiError, BadRequest, TooLarge
from rollyard.host.peer_user import PeerUsers

log = logging.getLogger(__name__)
_USERS = web.AppKey("users", PeerUsers)

MAX_BODY_BYTES = 64 * 1024 * 1024
BODY_SECONDS = 60.0
"""Seconds within which a body must arrive."""
END_SECONDS = 0.1
"""Seconds for which open requests may go on after the end has begun. For aiohttp 0 means without a limit."""
MAX_DEPTH = 100
"""Nested lists and objects of a body. The server reads a few more."""


@dataclass(frozen=True)
class LoopbackAddress:
    """Address of this machine that other machines cannot reach."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> LoopbackAddress:
        """Parse HOST:PORT. Raises BadRequest if the host is not an address of the loopback interface."""
        host, _, port = text.rpartition(":")
        host = host.strip("[]")
        try:
            loopback, number = ipaddress.ip_address(host or "127.0.0.1").is_loopback, int(port)
        except ValueError:
            loopback, number = False, -1
        if not 0 <= number <= 65535:
            raise BadRequest(f"{text!r} is not ADDRESS:PORT, such as 127.0.0.1:18700")
        if not loopback:
            raise BadRequest(
                f"the bridge has no token and no TLS, so it cannot listen on {host}, which other machines may reach; "
                f"give an address of this machine alone, such as 127.0.0.1:{number}"
            )
        return cls(host or "127.0.0.1", number)


async def serve(routes: Sequence[web.RouteDef], address: LoopbackAddress, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `ready` gets the URL. At the end open connections are closed without an answer.

    Raises BadRequest if the address cannot be used.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_same_user_only, _answer_refusals])
    app[_USERS] = PeerUsers()
    app.add_routes(list(routes))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=END_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port)
        try:
            await site.start()
        except OSError as error:
            raise BadRequest(f"cannot listen on {address.host}:{address.port}: {error.strerror or error}") from None
        host, port = runner.addresses[0][:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await stop.wait()
    finally:
        await runner.cleanup()


@web.middleware
async def _same_user_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse the processes of other users: the bridge runs rollouts with this user's token."""
    uid = None if request.transport is None else await request.app[_USERS].uid(request.transport)
    if uid != os.getuid():
        return web.json_response({"detail": "this bridge serves only the user who started it"}, status=403)
    return await handler(request)


@web.middleware
async def _answer_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response({"detail": str(error)}, status=error.code)


async def json_object(request: web.Request) -> dict[str, Any]:
    """Read the body. Raises BadRequest if it is not a JSON object of finite numbers or does not arrive in time, and
    TooLarge."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await request.read()
        body = json.loads(data, parse_constant=_finite, parse_float=_finite)
    except TimeoutError:
        raise BadRequest(f"the body did not arrive within {BODY_SECONDS:g} s") from None
    except ConnectionError:
        raise BadRequest("the caller closed its connection before it had sent the body") from None
    except web.HTTPRequestEntityTooLarge:
        raise TooLarge(f"a body may have at most {MAX_BODY_BYTES} bytes") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
    if level:
        raise BadRequest(f"the body has more than {MAX_DEPTH} nested lists and objects")
    return body


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _children(node: Any) -> Iterable[Any]:
    found = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [child for child in found if isinstance(child, (dict, list))]


async def answer(
    request: web.Request, body: dict[str, Any], before: Callable[[], Awaitable[None]] | None = None
) -> web.StreamResponse:
    """Make the answer to a caller. `before` runs directly before the first byte, and only if the caller is still there."""
    data = await asyncio.to_thread(lambda: json.dumps(body, allow_nan=False).encode())
    if before is not None and request.transport is not None and not request.transport.is_closing():
        await before()
    return web.Response(body=data, content_type="application/json")
