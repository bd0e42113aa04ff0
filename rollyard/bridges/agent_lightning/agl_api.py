"""The API of Agent Lightning 1.0's server, as a rollout controller uses it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from rollyard.core.backoff import Backoff
from rollyard.core.errors import Conflict, NotFound, Unauthorized, connection_failure_text

log = logging.getLogger(__name__)

MANY = 1_000_000
"""A limit above each number of rollouts that the server holds; it has no cursor for these lists."""


class AglApi:
    """Calls of one server. Each waits without a time limit while the server cannot be reached or answers 5xx."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str) -> None:
        self._http, self._url = http, url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def rollouts(self, *states: str) -> list[dict[str, Any]]:
        """List the rollouts in these states."""
        query = "&".join(f"state_in={state}" for state in states)
        found: list[dict[str, Any]] = await self._call("GET", f"/api/rollouts?{query}&limit={MANY}")
        return found

    async def has(self, id: str) -> bool:
        """Return whether the rollout exists, in whatever state."""
        try:
            await self._call("GET", _path(id))
        except NotFound:
            return False
        return True

    async def patch(self, id: str, **status: str) -> None:
        """Change the status. Raises NotFound, and Conflict if the state cannot follow the present one."""
        await self._call("PATCH", _path(id), {"status": status})

    async def event_count(self, id: str) -> int:
        """Count the events of the last attempt. Raises NotFound."""
        return len(await self._call("GET", f"{_path(id)}/events"))

    async def post_event(self, id: str, attempt: str, event: Mapping[str, Any]) -> None:
        """Append an event, once. Raises NotFound; ConnectionError if it is not known whether the event was appended."""
        await self._call("POST", f"{_path(id)}/attempt/{quote(attempt, safe='')}/events", event, repeat=False)

    async def _call(self, method: str, path: str, body: Any = None, *, repeat: bool = True) -> Any:
        backoff, logged = Backoff(), False
        while True:
            try:
                async with self._http.request(method, self._url + path, json=body, headers=self._headers) as answer:
                    if answer.status < 500:
                        return await _content(answer)
                    why = f"it answers {answer.status}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                why = connection_failure_text(error)
            if not repeat:
                raise ConnectionError(why)
            if not logged:
                logged = True
                log.warning("still waiting for Agent Lightning's server at %s: %s", self._url, why)
            await backoff.wait()


async def _content(answer: aiohttp.ClientResponse) -> Any:
    if answer.status < 400:
        return await answer.json()
    text = (await answer.text())[:500]
    if answer.status == 404:
        raise NotFound(text)
    if answer.status == 401:
        raise Unauthorized(f"Agent Lightning's server refuses the key in AGL_KEY: {text}")
    raise Conflict(f"Agent Lightning's server answers {answer.status}: {text}")


def _path(id: str) -> str:
    return f"/api/rollouts/{quote(id, safe='')}"
