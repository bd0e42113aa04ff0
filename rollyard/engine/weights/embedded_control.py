"""Controls the embedded engine, which itself adds the weights version to its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import aiohttp

from rollyard.engine.weights.engine_control import LOAD_SECONDS, ControlFailed, command, status
from rollyard.engine.weights.source import WeightsSource
from rollyard.model_folder.checkpoint_info import CheckpointInfo


class EmbeddedControl:
    labels_tokens = True
    can_pause = True
    buffers_transfers = True

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def detect(self) -> None:
        """Do nothing: the engine is part of this release, so its abilities are known."""

    def why_unsupported(self, source: WeightsSource) -> str:
        return ""

    def why_not_loadable(self, source: WeightsSource, now: WeightsSource, contents: CheckpointInfo) -> str:
        return ""

    def can_keep_requests(self, source: WeightsSource, now: WeightsSource) -> bool:
        return True

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

    def why_no_transfer(self) -> str:
        return ""

    async def finish_transfer(self, now: WeightsSource) -> None:
        """Do nothing: the engine itself changes its weights at the end of the transfer."""

    async def set_version(self, version: str) -> None:
        await command(self._http, "/control/version", {"version": version})

    async def round_trip(self) -> None:
        if await status(self._http, "/health") != 200:
            raise ControlFailed("it is not healthy")

    def request_fields(self, source: WeightsSource) -> Mapping[str, Any]:
        return {}
