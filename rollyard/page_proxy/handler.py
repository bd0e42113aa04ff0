"""Answers of the proxy. Each request passes `PageProxy.handle`, whatever its method and path are."""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

import aiohttp
from aiohttp import hdrs, web
from pydantic_core import to_json

from rollyard.client.server_connection import ServerConnection
from rollyard.core.errors import (
    ApiError,
    Forbidden,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    connection_failure_text,
)
from rollyard.core.untrusted_connections import TrustedConnections
from rollyard.host.peer_user import PeerUsers
from rollyard.page_proxy.browser_sessions import BrowserSessions
from rollyard.page_proxy.request_checks import PAGE, check_path, check_request

log = logging.getLogger(__name__)

MAX_OPEN = 48
"""Requests that are passed on at the same time. A browser opens six connections to one address."""
SILENCE_SECONDS = 150.0
"""Time after which a silent answer is broken off. Streams send something every minute, and no route waits longer."""
SENT_ON = (hdrs.ACCEPT, hdrs.IF_NONE_MATCH, "Last-Event-ID")
SENT_BACK = (hdrs.CONTENT_LENGTH, hdrs.ETAG, hdrs.RETRY_AFTER, hdrs.WARNING)
API_TYPES = ("application/json", "application/json-lines", "text/event-stream", "text/plain")
"""Types of answers that are not files of the page. A browser gets others as bytes, so it never runs or draws them."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageProxy:
    """Handler of all requests."""

    def __init__(
        self,
        server: ServerConnection,
        sessions: BrowserSessions,
        announce: Callable[[str], None],
        trusted: TrustedConnections,
    ) -> None:
        """`announce`: tells the person at the terminal a new code."""
        self._server, self._sessions, self._announce, self._trusted = server, sessions, announce, trusted
        self._users = PeerUsers()
        self._open = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as error:
            return _refusal(request, error)
        except ConnectionError:  # the browser has gone
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _refusal(request, ApiError("internal error; the output of `rollyard ui` has the details"))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        target, (path, _, query) = request.raw_path, request.raw_path.partition("?")
        code = parse_qs(query).get("code") if path == PAGE and request.method == hdrs.METH_GET else None
        check_request(request.method, target, request.version, request.headers, from_elsewhere=code is not None)
        await self._check_user(request)
        if code is not None and (cookie := self._sessions.exchange(code[0])) is not None:
            return self._signed_in(cookie)
        if not self._sessions.is_signed_in(request.headers.getall(hdrs.COOKIE, [])):
            self._refuse(path)
        if path == "/" or code is not None:
            return _html(HTTPStatus.OK, "This browser is signed in.", forward_seconds=0)
        check_path(unquote(path))
        return await self._pass_on(request, target)

    async def _check_user(self, request: web.BaseRequest) -> None:
        """Refuse the processes of other users: cookies and codes may leak to them, as another port gets the same cookies."""
        if request.transport is None or request.transport in self._trusted:
            return
        if await self._users.uid(request.transport) != os.getuid():
            raise Forbidden("this `rollyard ui` serves only the user who started it")
        self._trusted.add(request.transport)

    def _refuse(self, path: str) -> None:
        """Raise Unauthorized. A person who opens the page finds a new address at the terminal if the former one is void."""
        if path == PAGE and not self._sessions.has_code:
            self._announce(self._sessions.new_code())
        raise Unauthorized(
            "this browser is not signed in, or the address was used already: open the newest address that `rollyard ui` "
            "printed in its terminal. If you came from a page of another site, reload this page"
        )

    def _signed_in(self, cookie: str) -> web.Response:
        """Give the cookie, and lead the browser away from the URL with the code.

        A redirect would not do: a browser sends no strict cookie while it follows what another site or program began.
        """
        response = _html(HTTPStatus.OK, "This browser is signed in.", forward_seconds=0)
        name = self._sessions.cookie_name
        response.set_cookie(name, cookie, path="/", httponly=True, samesite="Strict")
        return response

    async def _pass_on(self, request: web.BaseRequest, target: str) -> web.StreamResponse:
        if self._open >= MAX_OPEN:
            raise TooManyRequests(f"{MAX_OPEN} requests of browsers are open; close some pages", retry_after=1)
        self._open += 1
        try:
            headers = {name: request.headers[name] for name in SENT_ON if name in request.headers}
            headers[hdrs.ACCEPT_ENCODING] = "identity"
            async with self._server.any_answer(request.method, target, headers, SILENCE_SECONDS) as answer:
                if answer.status == HTTPStatus.UNAUTHORIZED:
                    raise Unavailable(
                        "the server refuses the kubeconfig's token; get a new kubeconfig, and start this again"
                    )
                return await self._send_back(request, answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error, ConnectionError) and not isinstance(error, aiohttp.ClientError):
                raise
            why = connection_failure_text(error)
            raise Unavailable(f"the server does not answer at present ({why})", retry_after=1) from None
        finally:
            self._open -= 1

    async def _send_back(self, request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Send an answer piece by piece, each when the browser has taken the one before."""
        response = web.StreamResponse(status=answer.status, headers=HEADERS)
        response.headers.update({name: answer.headers[name] for name in SENT_BACK if name in answer.headers})
        is_file = request.raw_path.startswith(PAGE) and answer.status < 400
        if hdrs.CONTENT_TYPE in answer.headers:
            known = is_file or answer.content_type in API_TYPES
            response.headers[hdrs.CONTENT_TYPE] = (
                answer.headers[hdrs.CONTENT_TYPE] if known else "application/octet-stream"
            )
        response.headers[hdrs.CACHE_CONTROL] = "no-cache" if is_file else "no-store"
        await response.prepare(request)
        try:
            async for piece in answer.content.iter_any():
                await response.write(piece)
        except (aiohttp.ClientError, TimeoutError):
            if request.transport is not None:
                request.transport.close()  # without a last chunk, so that the page sees that the answer broke off
            return response
        await response.write_eof()
        return response


def _refusal(request: web.BaseRequest, error: ApiError) -> web.Response:
    """Return an error: as a text for a person who opens the page, else as a Status."""
    if request.raw_path.partition("?")[0] in ("/", PAGE):
        response = _html(error.code, str(error), forward_seconds=2 if isinstance(error, Unavailable) else None)
    else:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": error.code}
        status |= {"reason": error.reason, "message": str(error)}
        response = web.Response(
            body=to_json(status), status=error.code, content_type="application/json", headers=_headers()
        )
    if error.retry_after is not None:
        response.headers[hdrs.RETRY_AFTER] = str(error.retry_after)
    if request.can_read_body or not isinstance(error, Unavailable):
        response.force_close()
    return response


def _html(status: int, text: str, *, forward_seconds: int | None) -> web.Response:
    """Return a page with a sentence. `forward_seconds`: time after which the browser opens the page of the server."""
    forward = "" if forward_seconds is None else f'<meta http-equiv="refresh" content="{forward_seconds};url={PAGE}">'
    link = "" if forward_seconds is None else f' <a href="{PAGE}">Go to the page.</a>'
    body = f'<!doctype html><meta charset="utf-8"><title>Rollyard</title>{forward}<p>{html.escape(text)}{link}\n'
    return web.Response(text=body, status=status, content_type="text/html", headers=_headers())


def _headers() -> dict[str, str]:
    return {**HEADERS, hdrs.CACHE_CONTROL: "no-store"}
