"""Checks of a request, from its line and headers alone: whether a page of this proxy can have sent it, and whether the
proxy passes its path on."""

from __future__ import annotations

import re

from aiohttp import HttpVersion, HttpVersion11, hdrs
from multidict import CIMultiDictProxy

from rollyard.core.errors import BadRequest, Forbidden, MethodNotAllowed, NotFound

PAGE = "/ui/"
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""This machine under any port: behind `ssh -L` the browser uses a port of its own machine. Another name may be one that a
foreign site pointed to 127.0.0.1 (DNS rebinding)."""
_TARGET = re.compile(r"/[A-Za-z0-9._~/:@!$&'()*+,;=%-]*(\?[A-Za-z0-9._~/:@!$&'()*+,;=%?\[\]{}\"|^`-]*)?")
_HIDDEN = re.compile(r"//|/\.{1,2}(/|$)|%(?![0-9A-F]{2})|%(2e|2f|5c|[01][0-9a-f]|7f|[89a-f][0-9a-f])", re.IGNORECASE)
"""Parts of a path that servers read in different ways. No path of the API needs them."""
_PASSED_ON = re.compile(r"/(ui|v1|apis?)/.*|/(metrics|livez|readyz|healthz|version)")
_KEPT_BACK = re.compile(r"/v1/(node|engine|tokens)/.*|.*/weights/endpoints/.*|/v1/rollouts/[^/]*/attach")
"""Paths of node agents and engines, calls that reach an engine, and terminals."""


def check_request(
    method: str, target: str, version: HttpVersion, headers: CIMultiDictProxy[str], *, from_elsewhere: bool
) -> None:
    """Refuse what no page of this proxy sends. Raises an ApiError.

    `from_elsewhere`: the request may be a navigation that another site or program began, as from a link in a terminal.
    """
    hosts = headers.getall(hdrs.HOST, [])
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        raise Forbidden(
            "this is `rollyard ui`: use the address that it printed, with 127.0.0.1 or localhost as its host"
        )
    if version != HttpVersion11:
        raise BadRequest("send HTTP/1.1")
    if method not in (hdrs.METH_GET, hdrs.METH_HEAD):
        raise MethodNotAllowed(
            "`rollyard ui` only reads: it passes on GET and HEAD; use the command line to change things"
        )
    if hdrs.TRANSFER_ENCODING in headers or headers.getall(hdrs.CONTENT_LENGTH, ["0"]) != ["0"]:
        raise BadRequest("a request to read something has no body")
    if hdrs.UPGRADE in headers or hdrs.SEC_WEBSOCKET_KEY in headers:
        raise Forbidden("`rollyard ui` passes on no WebSocket; use `rollyard exec`")
    if any(origin != f"http://{hosts[0]}" for origin in headers.getall(hdrs.ORIGIN, [])):
        raise Forbidden("a page of another site sent this request")
    if not _is_navigation(headers) if from_elsewhere else not _is_own(headers):
        raise Forbidden("a page of another site sent this request; open the address in a tab of its own")
    if not _TARGET.fullmatch(target) or _HIDDEN.search(target.partition("?")[0]):
        raise BadRequest("this path is not in its normal form")


def check_path(path: str) -> None:
    """Raise NotFound for a path that is not passed on to the server. `path`: of a request that passed `check_request`."""
    if not _PASSED_ON.fullmatch(path) or _KEPT_BACK.fullmatch(path):
        raise NotFound(f"`rollyard ui` does not pass on {path}; the page is at {PAGE}")


def _is_own(headers: CIMultiDictProxy[str]) -> bool:
    """Other programs than browsers do not send Sec-Fetch-Site. Another port of this machine is `same-site`."""
    return all(site in ("same-origin", "none") for site in headers.getall("Sec-Fetch-Site", []))


def _is_navigation(headers: CIMultiDictProxy[str]) -> bool:
    modes, targets = headers.getall("Sec-Fetch-Mode", []), headers.getall("Sec-Fetch-Dest", [])
    return all(mode == "navigate" for mode in modes) and all(target == "document" for target in targets)
