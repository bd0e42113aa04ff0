"""Watches: changes as a stream of JSON lines, through selectors, with bookmarks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web

from rollyard.api import query_parameters, representation
from rollyard.api.error_status import status_body
from rollyard.api.long_responses import is_ended_by_stop, mark_long_lived
from rollyard.api.resources import Resource
from rollyard.api.selectors import Predicate
from rollyard.core.errors import ApiError, Invalid
from rollyard.kinds.base import KindObject, evolve
from rollyard.store.watch import Watch, WatchEvent

DEFAULT_WATCH_SECONDS, MAX_WATCH_SECONDS = 1800, 7200
BOOKMARK_SECONDS = 60.0
"""Seconds between two bookmarks, as in the API server of Kubernetes."""


def seen_through(event: WatchEvent, passes: Predicate) -> WatchEvent | None:
    """Return the event as a client with a selector sees it; None if the client sees nothing.

    An object that begins to match is ADDED. An object that no longer matches is DELETED: its last matching state, with
    the resourceVersion of the change. If the state before the change is unknown, it counts as matching: so a client may
    see DELETED for an object that it never saw, but it misses no DELETED.
    """
    obj, before = event.object, event.before
    matches = event.type != "DELETED" and passes(obj)
    if before is None and event.type == "DELETED":
        before = obj
    matched = event.type != "ADDED" and (before is None or passes(before))
    if matches:
        return WatchEvent("MODIFIED" if matched else "ADDED", obj)
    if not matched:
        return None
    last = before if before is not None and event.type != "DELETED" else obj
    return WatchEvent(
        "DELETED", evolve(last, metadata=evolve(last.metadata, resource_version=obj.metadata.resource_version))
    )


async def stream(
    request: web.Request,
    resource: Resource,
    present: Callable[[], Awaitable[tuple[Sequence[KindObject], str]]],
    changes: Callable[[str], Watch],
    shown: Callable[[WatchEvent], Awaitable[WatchEvent | None]],
) -> web.StreamResponse:
    """Stream the present objects, if the request asks for them, and then the changes.

    `present`: returns the present objects and the resourceVersion from which to watch. `changes`: watches from a
    resourceVersion. `shown`: returns what the client sees of a change.

    Raises Invalid for parameters that do not fit together.
    """
    since = request.query.get("resourceVersion", "")
    bookmarks = query_parameters.flag(request, "allowWatchBookmarks")
    initial = query_parameters.flag(request, "sendInitialEvents")
    _check_initial(request, initial)
    asked = query_parameters.integer(request, "timeoutSeconds", 0)
    seconds = min(asked or DEFAULT_WATCH_SECONDS, MAX_WATCH_SECONDS)
    mark_long_lived(request)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)

    async def send(type: str, body: dict[str, Any]) -> None:
        await response.write(json.dumps({"type": type, "object": body}).encode() + b"\n")

    async def bookmark(version: str, *, initial_end: bool = False) -> None:
        await send("BOOKMARK", representation.bookmark_body(request, resource, version, initial_end=initial_end))

    watch: Watch | None = None
    try:
        async with asyncio.timeout(seconds):
            if initial or (since in ("", "0") and "sendInitialEvents" not in request.query):
                if since not in ("", "0"):
                    changes(since)  # raises Expired for a version that this server has not reached
                objects, since = await present()
                for obj in objects:
                    await send("ADDED", representation.object_body(request, resource, obj))
                if initial:
                    await bookmark(since, initial_end=True)
            watch = changes(since or (await present())[1])
            while True:
                try:
                    async with asyncio.timeout(BOOKMARK_SECONDS if bookmarks else None):
                        change = await anext(watch)
                except TimeoutError:
                    await bookmark(watch.position)
                    continue
                if (event := await shown(change)) is not None:
                    await send(event.type, representation.object_body(request, resource, event.object))
    except TimeoutError:
        if bookmarks and watch is not None:
            with suppress(ConnectionError):
                await bookmark(watch.position)
    except asyncio.CancelledError:  # a broken stream is an error for clients, and a regular end none
        if not is_ended_by_stop(request):
            raise
    except ApiError as error:  # kubectl expects this error as an event at the end of a watch
        await send("ERROR", status_body(error))
    return response


def _check_initial(request: web.Request, initial: bool) -> None:
    """Check the parameters of a streaming list, as the API server of Kubernetes does."""
    match = request.query.get("resourceVersionMatch")
    if "sendInitialEvents" in request.query and match != "NotOlderThan":
        raise Invalid("sendInitialEvents needs resourceVersionMatch=NotOlderThan")
    if match is not None and "sendInitialEvents" not in request.query:
        raise Invalid("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
    if initial and not query_parameters.flag(request, "allowWatchBookmarks"):
        raise Invalid(
            "sendInitialEvents=true needs allowWatchBookmarks=true: a bookmark marks the end of the initial events"
        )
