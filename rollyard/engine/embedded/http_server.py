"""The HTTP server of the engine on a Unix socket, with vLLM's paths, bodies and behaviour.

If a client disconnects, its request is aborted. The model runs on the engine's thread, not on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from rollyard.core.aio import wait_or_timeout
from rollyard.core.errors import ApiError, BadRequest, Unavailable
from rollyard.engine.embedded.completions_api import (
    CompletionBuilder,
    CompletionRequest,
    ServedModel,
    error_body,
    read_request,
    version_spans,
)
from rollyard.engine.embedded.continuous_batching import Engine
from rollyard.engine.embedded.control_api import ControlRoutes
from rollyard.engine.embedded.generation import GenerationRequest, StepResult
from rollyard.engine.embedded.model import Model
from rollyard.engine.embedded.prometheus_metrics import EngineMetrics
from rollyard.wire.endpoint import VERSION_HEADER

MAX_BODY = 64 << 20
FLUSH_SECONDS = 0.02
"""Time to collect tokens after a chunk of a stream has been written. They share the next chunk, because writing a chunk
takes as much computing time as sampling a token."""


class _Inbox:
    """Results of a generation's steps, which wait for the request's handler. The handler takes all of them at once.

    `pop` and `pop_all` wait without a time limit. The engine ends every generation; if its thread fails, the process
    ends. A handler is cancelled when its client disconnects.
    """

    def __init__(self) -> None:
        self._steps: list[StepResult] = []
        self._arrived = asyncio.Event()
        self._ended = asyncio.Event()

    def put(self, step: StepResult) -> None:
        self._steps.append(step)
        self._arrived.set()
        if step.finish_reason is not None:
            self._ended.set()

    async def pop(self) -> list[StepResult]:
        await self._arrived.wait()
        self._arrived.clear()
        steps, self._steps = self._steps, []
        return steps

    async def pop_all(self) -> list[StepResult]:
        await self._ended.wait()
        return await self.pop()

    async def gather(self, seconds: float) -> None:
        """Wait for more steps until the time is up or the generation has ended."""
        await wait_or_timeout(self._ended, seconds)


class EngineServer:
    """Serves one model over HTTP. `failed` is set if the engine's thread has died."""

    def __init__(self, model: Model, served: ServedModel, *, max_sequences: int) -> None:
        """Call this inside a running event loop."""
        self.failed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._served = served
        self._stopping = False
        self._inboxes: dict[GenerationRequest, _Inbox] = {}
        self._engine = Engine(
            model,
            max_sequences=max_sequences,
            max_model_len=served.max_model_len,
            deliver=lambda progress: self._call(self._deliver, progress),
            failed=lambda: self._call(self.failed.set),
        )
        self._metrics = EngineMetrics(self._engine.stats, served.name)
        self._control = ControlRoutes(self._engine, model)

    def start(self) -> None:
        self._engine.start()

    async def stop(self) -> None:
        """Stop the engine, and refuse new requests. Running requests end with finish_reason "abort" and the tokens
        sampled so far."""
        self._stopping = True
        await asyncio.to_thread(self._engine.stop)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_routes(self._control.routes())
        return app

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def _deliver(self, progress: Sequence[tuple[GenerationRequest, StepResult]]) -> None:
        for generation, step in progress:
            inbox = self._inboxes.get(generation)
            if inbox is not None:
                inbox.put(step)

    async def _health(self, request: web.Request) -> web.Response:
        if self.failed.is_set() or self._stopping:
            raise Unavailable("the engine is not running")
        return web.Response()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), content_type="text/plain", charset="utf-8")

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": self._served.name,
            "object": "model",
            "created": self._served.started,
            "owned_by": "rollyard",
            "max_model_len": self._served.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        completion = read_request(await request.read())
        prompt = await self._prompt(completion)
        if completion.structured_outputs is None:
            generation = self._served.generation(completion, prompt)
        else:
            generation = await asyncio.to_thread(self._served.generation, completion, prompt)
        answer = CompletionBuilder(self._served, completion, generation)
        async with self._running(generation) as inbox:
            if completion.stream:
                return await _stream(request, completion, answer, inbox)
            steps = await inbox.pop_all()
            if steps[-1].error:
                raise BadRequest(steps[-1].error)
            spans = version_spans(steps)
            headers = {VERSION_HEADER: spans[-1]["version"]} if spans else {}
            return web.json_response(answer.whole(steps), headers=headers)

    async def _prompt(self, completion: CompletionRequest) -> list[int]:
        if isinstance(completion.prompt, list):
            return completion.prompt
        encoding = await asyncio.to_thread(self._served.tokenizer.encode, completion.prompt)
        ids: list[int] = encoding.ids
        return ids

    @asynccontextmanager
    async def _running(self, generation: GenerationRequest) -> AsyncIterator[_Inbox]:
        """Run the generation during an `async with` block. The generation is aborted if the block ends earlier."""
        if self.failed.is_set() or self._stopping:
            raise Unavailable("the engine is not running")
        inbox = self._inboxes[generation] = _Inbox()
        self._engine.submit(generation)
        try:
            yield inbox
        finally:
            del self._inboxes[generation]
            self._engine.abort(generation)


async def _stream(
    request: web.Request, completion: CompletionRequest, answer: CompletionBuilder, inbox: _Inbox
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    ended, announced = False, ""
    while not ended:
        steps = await inbox.pop()
        ended = steps[-1].finish_reason is not None
        for version, run in groupby(steps, key=lambda step: step.version):
            if version and version != announced:  # the event precedes the version's first token
                announced = version
                await response.write(_event({"object": "rollyard.weights", "weights_version": version}))
            await response.write(_event(answer.body(list(run))))
        if steps[-1].error:
            await response.write(_event(error_body(BadRequest(steps[-1].error))))
        await inbox.gather(FLUSH_SECONDS)
    if completion.stream_options.include_usage:
        await response.write(_event(answer.usage_chunk()))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + to_json(body) + b"\n\n"


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error_body(error), status=error.code)
