"""The embedded engine as one whose weights can be changed: it labels its tokens itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import aiohttp

from rollyard.engine.weights.engine_control import LOAD_SECONDS, ControlFailed, command, status
from rollyard.engine.weights.source import Contents, Source


class EmbeddedControl:
    labels = True
    pauses = True
    stages = True

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def look(self) -> None:
        """It is of our own version."""

    def refuses(self, source: Source) -> str:
        return ""

    def cannot_load(self, source: Source, now: Source, contents: Contents) -> str:
        return ""

    def keeps(self, source: Source, now: Source) -> bool:
        return True

    async def pause(self, requests: Literal["keep", "abort"]) -> None:
        await command(self._http, "/control/pause", {"mode": requests})

    async def resume(self) -> None:
        await command(self._http, "/control/resume")

    async def load(self, source: Source, now: Source | None) -> None:
        if now is None and source.adapter is None:
            return
        adapter = str(source.adapter) if source.adapter else None
        body = {"path": str(source.folder), "adapter": adapter}
        await command(self._http, "/control/load", body, seconds=LOAD_SECONDS)

    def no_transfer(self) -> str:
        return ""

    async def moved(self, now: Source) -> None:
        """Its own end of a transfer has done it."""

    async def name(self, version: str) -> None:
        await command(self._http, "/control/version", {"version": version})

    async def turn(self) -> None:
        if await status(self._http, "/health") != 200:
            raise ControlFailed("it is not healthy")

    def fields(self, source: Source) -> Mapping[str, Any]:
        return {}
