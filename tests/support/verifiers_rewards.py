"""The rewards of verifiers' tasks without Rollyard: its own harness plays, and calls a model server with given texts.

The program runs with verifiers' Python. It reads a JSON list of [taskset, index, texts], and writes the reward of each; null
if the task asks for more texts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.clients import ModelContext
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

KEY = "NO_KEY"


async def play(taskset: str, index: int, texts: Sequence[str]) -> float | None:
    given = iter(texts)

    async def answer(request: web.Request) -> web.StreamResponse:
        text = next(given, None)
        if text is None:
            return web.json_response({"error": {"message": "there are no more texts"}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        for part in ({"choices": [choice]}, {"choices": [], "usage": usage}):
            body = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", **part}
            await response.write(f"data: {json.dumps(body)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    role = "player" if taskset == "vf-guesses" else "agent"
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env: Any = load_environment(resolve_env_config({"taskset": {"id": taskset}, role: agent}))
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    context = ModelContext("m", vf.EvalClientConfig(base_url=url, api_key_var=KEY))
    async with env.serving():
        episode = await env.run_episode(next(itertools.islice(env.taskset, index, None)), context)
    await runner.cleanup()
    return float(episode.traces[0].reward) if episode.ok else None


async def main() -> None:
    asked = [(taskset, index, tuple(texts)) for taskset, index, texts in json.load(sys.stdin)]
    different = list(dict.fromkeys(asked))
    # Each play ends by itself: verifiers does not end one that is cancelled
    played = await asyncio.gather(*(play(*one) for one in different), return_exceptions=True)
    for error in played:
        if isinstance(error, BaseException):
            raise error
    rewards = dict(zip(different, played, strict=True))
    print("REWARDS", json.dumps([rewards[one] for one in asked]))


if __name__ == "__main__":
    os.environ[KEY] = "none"
    asyncio.run(main())
