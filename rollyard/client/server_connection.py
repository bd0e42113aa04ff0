"""Requests to the API. Errors become exceptions. A failed call is retried if it may safely be made
twice, or if the connection could not be opened, because nothing was sent then. Each attempt reads the server's current
address."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from rollyard.client.kubeconfig import Context
from rollyard.client.renewed_token import RenewedToken
from rollyard.client.server_link import raise_for_status, wait_until_moved
from rollyard.core.aio import running
from rollyard.core.backoff import Backoff
from rollyard.core.errors import Unavailable, connection_failure_text

T = TypeVar("T")
log = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""Time for which a call retries while the server is unreachable or overloaded. A restart takes a second or two."""
REQUEST_SECONDS = 90.0
CONNECT_SECONDS = 5.0
WAITS_AT_ONCE = 256
"""If this many calls of one client already wait for the end of a rollout, the client delays further such calls."""
OTHER_CONNECTIONS = 64
"""Connections for all other calls. A call that waits for a rollout holds its connection for up to half a minute."""


class ServerConnection:
    """HTTP session for calls to the server's current URL."""

    def __init__(
        self, context: Context, warn: Callable[[str], None] = log.warning, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        """`warn`: function that gets the texts of `Warning` headers, and a text when a call waits for the server.

        `retry_seconds`: time for which a call waits for an unreachable server.
        """
        self.context = context
        self._warn = warn
        self._retry_seconds = retry_seconds
        self.waits = asyncio.Semaphore(WAITS_AT_ONCE)
        """Each call that waits for a rollout holds one place."""
        limit = WAITS_AT_ONCE + OTHER_CONNECTIONS
        connector = aiohttp.TCPConnector(ssl=context.tls() if context.ca_pem else True, limit=limit)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        token = RenewedToken(context.token, context.current_token)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, middlewares=[token])

    async def close(self) -> None:
        await self._session.close()

    def query(self, namespace: str | None, **more: str | None) -> dict[str, str]:
        """Return the query of a call: the namespace, by default that of the context, and the values that are not empty."""
        given = {"namespace": namespace or self.context.namespace, **more}
        return {k: v for k, v in given.items() if v}

    async def json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        repeat: bool = True,
        seconds: float = REQUEST_SECONDS,
    ) -> Any:
        """Return the JSON answer.

        `repeat`: the call may safely be made twice, so it is repeated if the answer is lost. `body`: bytes are sent
        unchanged, other values as JSON. `seconds`: limit of one attempt.

        Raises ApiError; Unavailable if the server stays unreachable or overloaded, or if an answer is lost and the call
        must not be repeated.
        """

        def read(answer: aiohttp.ClientResponse) -> Awaitable[Any]:
            return answer.json()

        return await self._request(read, method, path, query, body, content_type, repeat, seconds)

    async def get_bytes(self, path: str, query: Mapping[str, str], accept: str) -> tuple[str, bytes]:
        """Return the content type and the bytes of an answer. Raises the errors of `json`."""

        async def read(answer: aiohttp.ClientResponse) -> tuple[str, bytes]:
            return answer.content_type, await answer.read()

        return await self._request(read, "GET", path, query, headers={"Accept": accept})

    async def _request(
        self,
        read: Callable[[aiohttp.ClientResponse], Awaitable[T]],
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any = None,
        content_type: str = "application/json",
        repeat: bool = True,
        seconds: float = REQUEST_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        backoff, loop = Backoff(), asyncio.get_running_loop()
        deadline, reported = loop.time() + self._retry_seconds, False
        while True:
            least_wait = 0
            try:
                payload = _payload(body, content_type)
                async with self._open(method, path, query, payload, seconds, headers) as answer:
                    return await read(answer)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
                words = f"no answer from {await self._url()} ({connection_failure_text(error)})"
                if loop.time() >= deadline or not (repeat or unsent):
                    raise Unavailable(f"{words}; is `rollyard serve` running?") from None
            except Unavailable as error:
                least_wait, words = error.retry_after or 0, f"the server cannot answer at present: {error}"
                if loop.time() + least_wait >= deadline or not repeat:
                    raise
            if not reported:
                self._warn(f"{words}; trying again for {max(0.0, deadline - loop.time()):.0f} s")
                reported = True
            await asyncio.sleep(max(least_wait, min(backoff.seconds(), deadline - loop.time())))

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence: float | None = None, accept: str = "*/*"
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Return a long answer as a stream. The stream breaks if the server moves, or is silent for `silence` seconds.

        Raises ApiError for an error status. When the stream breaks, this call or a read raises ClientError or
        TimeoutError.
        """
        target = str(URL(path).with_query(query))
        async with self.any_answer("GET", target, {"Accept": accept}, silence) as answer:
            await self._check(answer)
            yield answer

    @asynccontextmanager
    async def any_answer(
        self, method: str, target: str, headers: Mapping[str, str], silence: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Return an answer of any status as a stream, which breaks as that of `stream` does. `target`: path and query, as
        they are sent."""
        at = await self._url()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        async with asyncio.timeout(None) as limit, running(self._cut_when_moved(at, lambda: limit.reschedule(0))):
            url = URL(at + target, encoded=True)
            answer = await self._session.request(method, url, timeout=timeout, headers=headers, allow_redirects=False)
        # No `asyncio.timeout` here, because it would also cancel what the caller does between two reads.
        async with answer, running(self._cut_when_moved(at, answer.close)):
            yield answer

    @asynccontextmanager
    async def web_socket(
        self, path: str, query: Mapping[str, str], heartbeat_seconds: float, max_bytes: int
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket. Raises ClientError."""
        url = (await self._url()).replace("https://", "wss://", 1).replace("http://", "ws://", 1) + path
        async with self._session.ws_connect(
            url, params=query, heartbeat=heartbeat_seconds, max_msg_size=max_bytes
        ) as socket:
            yield socket

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: aiohttp.payload.Payload | None,
        seconds: float,
        headers: Mapping[str, str] | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        url = await self._url() + path
        async with self._session.request(
            method, url, params=query, data=data, timeout=timeout, headers=headers
        ) as answer:
            await self._check(answer)
            yield answer

    async def _check(self, answer: aiohttp.ClientResponse) -> None:
        await raise_for_status(answer)
        for header in answer.headers.getall("Warning", ()):
            self._warn(re.sub(r"\\(.)", r"\1", header.partition(' "')[2].removesuffix('"')))

    async def _cut_when_moved(self, at: str, cut: Callable[[], None]) -> None:
        await wait_until_moved(self._url, at)
        cut()

    async def _url(self) -> str:
        """Read the URL in a thread, because shared storage may stall and would block the trainer's event loop."""
        return await asyncio.to_thread(self.context.current_url)


async def lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield each complete line that is not empty. Lines may have any length; aiohttp's own line reader refuses a line
    as long as a trajectory."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


def _payload(body: Any, content_type: str) -> aiohttp.payload.Payload | None:
    if isinstance(body, bytes):  # sent in pieces, because one large write would block the event loop
        return aiohttp.payload.BytesIOPayload(BytesIO(body), content_type=content_type)
    return None if body is None else aiohttp.payload.JsonPayload(body, content_type=content_type)
