"""The control routes on the engine's Unix socket: freeze the engine, load other weights, resume.

The reverse proxy in front of the engine never forwards `/control/…`. The other routes are for a trainer that transfers
weights, and have vLLM's names. The proxy forwards them only while a weights update awaits a transfer.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from rollyard.core.errors import BadRequest, Conflict, Invalid, Unavailable
from rollyard.engine.embedded.continuous_batching import Engine
from rollyard.engine.embedded.model import Model
from rollyard.engine.embedded.model_weights import load_weights
from rollyard.engine.embedded.received_tensors import ReceivedTensors
from rollyard.model_folder.model_config import read_config

M = TypeVar("M", bound=BaseModel)

CHANGE_SECONDS = 30.0
"""Longest wait for the end of the running step. A change is made only between two steps."""


class PauseRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mode: Literal["keep", "abort"]


class LoadRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: Path
    adapter: Path | None = None
    """LoRA adapter in PEFT's layout, merged into the weights of `path`."""


class VersionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: str


class ControlRoutes:
    def __init__(self, engine: Engine, model: Model) -> None:
        self._engine = engine
        self._model = model
        self._received: ReceivedTensors | None = None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/control/pause", self._pause),
            web.post("/control/resume", self._resume),
            web.post("/control/load", self._load),
            web.post("/control/version", self._set_version),
            web.post("/start_weight_update", self._start),
            web.post("/update_weights", self._receive),
            web.post("/finish_weight_update", self._finish),
        ]

    async def _pause(self, request: web.Request) -> web.Response:
        command = await _read(request, PauseRequest)
        return await _done(self._engine.freeze(abort=command.mode == "abort"))

    async def _resume(self, request: web.Request) -> web.Response:
        return await _done(self._engine.thaw())

    async def _load(self, request: web.Request) -> web.Response:
        command, self._received = await _read(request, LoadRequest), None
        self._model = await asyncio.to_thread(self._read_model, command)
        return await _done(self._engine.swap(self._model))

    async def _set_version(self, request: web.Request) -> web.Response:
        command = await _read(request, VersionRequest)
        return await _done(self._engine.set_version(command.version))

    async def _start(self, request: web.Request) -> web.Response:
        """Start a transfer, and discard the tensors of an unfinished transfer."""
        self._received = ReceivedTensors(self._model.config)
        return web.json_response({"message": "Weight update started"})

    async def _receive(self, request: web.Request) -> web.Response:
        await self._open_transfer(request).receive(request.content)
        return web.json_response({"message": "Weights received"})

    async def _finish(self, request: web.Request) -> web.Response:
        weights = await asyncio.to_thread(self._open_transfer(request).weights)
        self._model, self._received = Model(self._model.config, weights, self._model.capacity), None
        await _done(self._engine.swap(self._model))
        return web.json_response({"message": "Weight update finished"})

    def _open_transfer(self, request: web.Request) -> ReceivedTensors:
        if self._received is None:
            raise Conflict(f"{request.path}: no transfer has started; call /start_weight_update first")
        return self._received

    def _read_model(self, command: LoadRequest) -> Model:
        """Read the model of a load request. Raises Invalid if the folder has no model, or a model of another shape."""
        config = read_config(command.path)
        if config.shape != self._model.config.shape:
            raise Invalid(f"{command.path} has another shape than the running model; start an engine on it instead")
        return Model(config, load_weights(command.path, config, command.adapter), self._model.capacity)


async def _read(request: web.Request, model: type[M]) -> M:
    try:
        return model.model_validate_json(await request.read())
    except ValidationError as error:
        raise BadRequest(f"{request.path}: {error.errors(include_url=False)[0]['msg']}") from None


async def _done(change: Future[Any]) -> web.Response:
    try:
        async with asyncio.timeout(CHANGE_SECONDS):
            await asyncio.wrap_future(change)
    except TimeoutError:
        raise Unavailable("the engine's thread does not answer") from None
    return web.Response()
