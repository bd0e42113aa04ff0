"""An allocation's output, also after its job has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from rollyard.api.kinds import BASE
from rollyard.api.services import SERVICES
from rollyard.api.streams import lasts
from rollyard.errors import BadRequest, NotFound

CHUNK = 64 << 10
POLL_SECONDS = 0.3
MAX_TAIL_BYTES = 4 << 20


def routes() -> list[web.RouteDef]:
    return [web.get(f"{BASE}/namespaces/{{namespace}}/allocations/{{name}}/log", _log)]


async def _log(request: web.Request) -> web.StreamResponse:
    """text/plain; `tail` lines from the end, `follow=1` for what comes after until the client goes."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    path = request.app[SERVICES].log_file(namespace, name)
    tail = request.query.get("tail", "")
    if tail and not tail.isdigit():
        raise BadRequest("tail must be a whole number of lines")
    if not path.is_file():
        raise NotFound(f"allocation {name!r} has no output: its job has not started, or it is gone")
    lasts(request)
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    await response.prepare(request)
    position = await asyncio.to_thread(_tail_start, path, int(tail)) if tail else 0
    while True:
        data = await asyncio.to_thread(_read, path, position)
        if data:
            await response.write(data)
            position += len(data)
        elif request.query.get("follow") != "1":
            return response
        else:
            await asyncio.sleep(POLL_SECONDS)


def _read(path: Path, position: int) -> bytes:
    with path.open("rb") as file:
        file.seek(position)
        return file.read(CHUNK)


def _tail_start(path: Path, lines: int) -> int:
    """Where the last `lines` lines begin, looking back a bounded way."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - MAX_TAIL_BYTES))
        data = file.read()
    kept = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
    return size - len(kept)
