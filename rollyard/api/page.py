"""`GET /ui/…`: the files of the page that `rollyard ui` shows. They are read for each request, and the browser keeps them by
their ETag."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path

from aiohttp import hdrs, web

import rollyard
from rollyard.api.query_parameters import accepts
from rollyard.core.errors import NotFound

FOLDER = Path(rollyard.__file__).parent / "page"
START = "index.html"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
}
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""A file below the folder. No part begins with a dot."""


def routes() -> list[web.RouteDef]:
    return [web.get("/ui/{file:.*}", _file)]


@accepts()
async def _file(request: web.Request) -> web.Response:
    """Return a file of the page; without a name, the page itself."""
    name = request.match_info["file"] or START
    suffix = Path(name).suffix
    try:
        if not _NAME.fullmatch(name) or suffix not in TYPES:
            raise FileNotFoundError
        body, tag = await asyncio.to_thread(_read, name)
    except OSError:
        raise NotFound(f"the page has no file {name!r}") from None
    headers = {hdrs.ETAG: tag, hdrs.CACHE_CONTROL: "no-cache"}
    if tag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
        return web.Response(status=304, headers=headers)
    text = TYPES[suffix].startswith("text/")
    return web.Response(body=body, content_type=TYPES[suffix], charset="utf-8" if text else None, headers=headers)


def _read(name: str) -> tuple[bytes, str]:
    """Return a file and its ETag. Raises OSError."""
    body = (FOLDER / name).read_bytes()
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'
