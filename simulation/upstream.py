"""A model server without a model: in vLLM's shape, it streams given answers at a given pace.

It serves measurements of the parts in front of an engine, and tests that need a particular answer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rollyard.gateway.session.streaming_text import Detokenizer
from rollyard.tokens.chat_template import ChatTemplate
from simulation.serving import serve_app

LOGPROB = -0.5
Script = Callable[[int, Sequence[int]], Sequence[int]]
"""Maps (number of the request, prompt ids) to the ids of the answer, including the one that ends the turn."""


@dataclass
class Upstream:
    script: Script
    pace: float = 0.0
    """Seconds between two chunks."""
    sizes: Sequence[int] = (1,)
    """Numbers of ids in the chunks of an answer, over and over."""
    returns_ids: bool = True
    """Whether the answers have token ids. If not, they are text only."""
    template: ChatTemplate | None = None
    """Serves `/v1/chat/completions` too, with a chat server's work.

    It renders and tokenises the whole conversation, and decodes the ids to text.
    """
    model: str | None = None
    """Serves `/v1/models` with this name, and requests without a stream with one id, as the server's probes need."""
    url: str = ""
    prompts: list[list[int]] = field(default_factory=list)
    """Prompts in order of arrival."""
    running: int = 0
    """Requests in flight."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Upstream]:
        async with serve_app(self.application(), handler_cancellation=True) as self.url:
            yield self

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/completions", self._complete)
        if self.template is not None:
            app.router.add_post("/v1/chat/completions", self._chat)
        if self.model is not None:
            app.router.add_get("/v1/models", self._models)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.model}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.model is not None and not body.get("stream"):
            probed = {"text": "a", "token_ids": [1], "logprobs": {"token_logprobs": [LOGPROB]}}
            return web.json_response({"choices": [probed]})
        echo = body["prompt"] if body.get("return_token_ids") else None

        def chunk(ids: Sequence[int], finish: str | None) -> bytes:
            nonlocal echo
            told, echo = echo, None
            return (
                _completion(ids, told, finish) if self.returns_ids else _event({"text": "a", "finish_reason": finish})
            )

        return await self._answer(request, body["prompt"], body["max_tokens"], chunk)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        template = self.template
        assert template is not None
        detokenizer, stop_ids = Detokenizer(template.decode), frozenset(template.stop_ids)

        def chunk(ids: Sequence[int], finish: str | None) -> bytes:
            said = [i for i in ids if i not in stop_ids]
            return _delta(detokenizer.feed(said) if finish is None else detokenizer.flush(), finish)

        prompt = template.encode(template.render(body["messages"], body.get("tools") or [], True))
        return await self._answer(request, prompt, body["max_tokens"], chunk)

    async def _answer(
        self,
        request: web.Request,
        prompt: list[int],
        max_tokens: int,
        chunk: Callable[[Sequence[int], str | None], bytes],
    ) -> web.StreamResponse:
        self.prompts.append(prompt)
        ids = list(self.script(len(self.prompts) - 1, prompt))
        finish = "stop" if len(ids) <= max_tokens else "length"
        ids = ids[:max_tokens]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.running += 1
        try:
            await response.prepare(request)
            loop = asyncio.get_running_loop()
            began = loop.time()
            start = 0
            for number, size in enumerate(itertools.cycle(self.sizes), 1):
                if start >= len(ids):
                    break
                if self.pace:  # by the clock, because an engine computes on however slowly its answers are read
                    await asyncio.sleep(max(0.0, began + number * self.pace - loop.time()))
                await response.write(chunk(ids[start : start + size], None))
                start += size
            usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
            await response.write(chunk([], finish) + _data({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
            await response.write_eof()
        finally:
            self.running -= 1
        return response


def _completion(ids: Sequence[int], echo: Sequence[int] | None, finish: str | None) -> bytes:
    choice = {
        "index": 0,
        "prompt_token_ids": echo,
        "token_ids": list(ids),
        "logprobs": {"token_logprobs": [LOGPROB] * len(ids)},
    }
    return _event({**choice, "finish_reason": finish, "text": ""})


def _delta(text: str, finish: str | None) -> bytes:
    return _event({"index": 0, "delta": {"content": text}, "finish_reason": finish})


def _event(choice: dict[str, Any]) -> bytes:
    return _data({"choices": [choice]})


def _data(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"
