"""Controls the embedded engine. It adds the weights version to its tokens, and changes its weights at the end of a transfer."""

from __future__ import annotations

from typing import Literal

import aiohttp

from rollyard.engine.weights.engine_control import LOAD_SECONDS, ControlFailed, EngineControl, command, status
from rollyard.engine.weights.source import WeightsSource


class EmbeddedControl(EngineControl):
    labels_tokens = True
    can_pause = True
    buffers_transfers = True

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def pause(self, requests: Literal["keep", "abort"]) -> None:
        await command(self._http, "/control/pause", {"mode": requests})

    async def resume(self) -> None:
        await command(self._http, "/control/resume")

    async def load(self, source: WeightsSource, now: WeightsSource | None) -> None:
        if now is None and source.adapter is None:
            return
        adapter = str(source.adapter) if source.adapter else None
        body = {"path": str(source.folder), "adapter": adapter}
        await command(self._http, "/control/load", body, seconds=LOAD_SECONDS)

    async def set_version(self, version: str) -> None:
        await command(self._http, "/control/version", {"version": version})

    async def round_trip(self) -> None:
        if await status(self._http, "/health") != 200:
            raise ControlFailed("it is not healthy")
