"""`GET /v1/changes`: the objects of all kinds, and then their changes, in one stream. A page that shows everything needs one
connection, where Kubernetes' watches need one for each kind.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress

from aiohttp import web

from rollyard.api.long_responses import is_ended_by_stop, mark_long_lived
from rollyard.api.query_parameters import accepts, integer
from rollyard.api.services import SERVICES
from rollyard.api.unread_answers import send_part
from rollyard.core.errors import Expired, Unavailable
from rollyard.kinds.base import KindObject
from rollyard.kinds.event import Event
from rollyard.kinds.registry import KINDS
from rollyard.store.watch import Watch, WatchEvent

KEEP_ALIVE_SECONDS = 10.0
GATHER_SECONDS = 0.25
"""Least time between two writes to one stream. Of the changes of an object within it only the last one is sent."""
MOST_GATHERED = 500
DEFAULT_EVENTS = 500


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/changes", _changes)]


@accepts("events")
async def _changes(request: web.Request) -> web.StreamResponse:
    """Send the objects of all namespaces, `{"type": "LISTED"}`, and then their changes, as JSON lines, at most four times a
    second: of several changes of an object the last one. `events`: number of the newest Events to begin with. An empty line
    every 10 s shows that the connection lives."""
    most = integer(request, "events", DEFAULT_EVENTS)
    objects = request.app[SERVICES].store.objects
    mark_long_lived(request)
    response = web.StreamResponse(headers={"Content-Type": "application/json-lines", "Cache-Control": "no-cache"})
    await response.prepare(request)
    version = ""
    present: list[KindObject] = []
    for word in KINDS:
        found, since = await objects.list_objects(word)
        version = version or since  # of the first list: a change between two lists comes twice rather than never
        present += _newest(found, most) if word == Event.__name__ else found
    try:
        await send_part(request, response, await asyncio.to_thread(_lines, "ADDED", present))
        await response.write(b'{"type": "LISTED"}\n')
        watch = objects.watch(None, version)
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    change = await anext(watch)
            except TimeoutError:
                await response.write(b"\n")
                continue
            await response.write(b"".join(_lines(c.type, [c.object]) for c in await _gathered(change, watch)))
            await asyncio.sleep(GATHER_SECONDS)
    except asyncio.CancelledError:  # a broken stream is an error for clients, and a regular end none
        if not is_ended_by_stop(request):
            raise
    except (Expired, Unavailable):  # the reader is too far behind, or the server stops: the reader begins again
        with suppress(ConnectionError):
            await response.write_eof()
    return response


async def _gathered(first: WatchEvent, watch: Watch) -> Iterable[WatchEvent]:
    """Return the last change of each object that has changed by now, beginning with `first`."""
    found = {first.object.key: first}
    while watch.is_behind and len(found) < MOST_GATHERED:
        change = await anext(watch)
        found.pop(change.object.key, None)
        found[change.object.key] = change
    return found.values()


def _newest(found: Iterable[KindObject], most: int) -> list[KindObject]:
    events = sorted((e for e in found if isinstance(e, Event)), key=lambda e: e.last_timestamp)
    return list(events[len(events) - most if most < len(events) else 0 :])


def _lines(type: str, objects: Iterable[KindObject]) -> bytes:
    return b"".join(json.dumps({"type": type, "object": o.dump()}).encode() + b"\n" for o in objects)
