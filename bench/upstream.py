"""A model server without a model: `/v1/completions` in vLLM's shape that answers what it is told to, at a pace.

For measuring what lies in front of an engine, and for tests that need a model to say something in particular.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

LOGPROB = -0.5
Script = Callable[[int, Sequence[int]], Sequence[int]]
"""(number of the request, prompt ids) -> ids to answer, the one that ends the turn included."""


@dataclass
class Upstream:
    script: Script
    pace: float = 0.0
    """Seconds between two chunks."""
    per_chunk: int = 1
    """Ids in a chunk."""
    url: str = ""
    prompts: list[list[int]] = field(default_factory=list)
    """As they came in."""
    running: int = 0
    """Requests in flight."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Upstream]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/completions", self._complete)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}"
            yield self
        finally:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.prompts.append(body["prompt"])
        ids = list(self.script(len(self.prompts) - 1, body["prompt"]))
        finish = "stop" if len(ids) <= body["max_tokens"] else "length"
        ids = ids[: body["max_tokens"]]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.running += 1
        try:
            await response.prepare(request)
            loop = asyncio.get_running_loop()
            began = loop.time()
            for number, start in enumerate(range(0, len(ids), self.per_chunk), 1):
                if self.pace:  # by the clock, as an engine computes on however slowly its answers are taken
                    await asyncio.sleep(max(0.0, began + number * self.pace - loop.time()))
                echo = body["prompt"] if start == 0 and body.get("return_token_ids") else None
                await response.write(_chunk(ids[start : start + self.per_chunk], echo, None))
            await response.write(_chunk([], None, finish) + b"data: [DONE]\n\n")
            await response.write_eof()
        finally:
            self.running -= 1
        return response


def _chunk(ids: Sequence[int], echo: Sequence[int] | None, finish: str | None) -> bytes:
    choice = {
        "index": 0,
        "prompt_token_ids": echo,
        "token_ids": list(ids),
        "logprobs": {"token_logprobs": [LOGPROB] * len(ids)},
    }
    return b"data: " + json.dumps({"choices": [{**choice, "finish_reason": finish, "text": ""}]}).encode() + b"\n\n"
