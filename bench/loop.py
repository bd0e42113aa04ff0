"""Turns of the agent loop a second a core, when neither the model nor the sandbox takes any time.

    python bench/loop.py [--rollouts 40] [--turns 20] [--tokens 8000] [--at-once 1]

The loop, the conversation with the tiny policy's own tokenizer and template, its tool-call parser and the token client are
the real ones, and so is the saving of turns for a rollout that can be resumed. The engine is a server in another process that
answers each request at once with the same turn, over HTTP in vLLM's shape, prompt ids sent back and all; the sandbox is a tool
that returns the same text at once. Every conversation has `--turns` turns and ends at about `--tokens` tokens.

A core's turns are turns by the CPU time of this process; the stand-in has its own. That time is also all that a turn spends
outside engine and sandbox, and its share of a turn follows for an engine and a tool that take their time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
from aiohttp import web

from rollyard.kinds.rollout import AgentSpec, Sampling
from rollyard.node.agent_loop import AgentProgress, run_agent
from rollyard.node.result_uploads import ResultUploads
from rollyard.node.tool_execution import Tools
from rollyard.node.turn_saver import TurnSaver
from rollyard.tasks.own_tools import ToolResult
from rollyard.tasks.tool_schemas import SCHEMAS
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.token_client import TokenClient
from rollyard.tokens.tool_calls import parser_for
from rollyard.trajectory.frames import framed
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.node import LeaseRef, TurnsHeader

MODEL = Path(__file__).parents[1] / "examples/tiny_policy/model"
CALL = '{"name": "ipython", "arguments": {"code": "print(sum(range(100)))"}}'
TYPICAL = ((0.5, 0.05), (2.0, 0.2), (10.0, 1.0))
"""Seconds of an engine and of a tool for one turn: a small, a medium and a large model."""


# The engine's stand-in, in a process of its own


async def serve(ids: list[int]) -> None:
    chunk = json.dumps({"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}, "finish_reason": "stop"})

    async def complete(request: web.Request) -> web.Response:
        prompt = json.dumps((await request.json())["prompt"])
        event = f'data: {{"choices": [{{"prompt_token_ids": {prompt}, {chunk[1:]}]}}\n\ndata: [DONE]\n\n'
        return web.Response(text=event, content_type="text/event-stream")

    app = web.Application(client_max_size=64 << 20)

    async def store(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"results": [None]})

    app.router.add_post("/v1/completions", complete)
    app.router.add_put("/v1/node/turns", store)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the parent ends
    await runner.cleanup()


@contextlib.asynccontextmanager
async def engine(ids: list[int]) -> AsyncIterator[Endpoint]:
    command = [sys.executable, __file__, "--serve", json.dumps(ids)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = await asyncio.to_thread(process.stdout.readline)
        url = f"http://127.0.0.1:{int(port)}"
        yield Endpoint(id="stand-in", url=url, model="policy", weights_version="v1", tokenizer=str(MODEL))
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


# The loop


class Remote:
    """The policy behind HTTP."""

    context: int | None = None

    def __init__(self, client: TokenClient, endpoint: Endpoint, stop_ids: Sequence[int]) -> None:
        self._client, self._endpoint, self._stop_ids = client, endpoint, stop_ids

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        limit = sampling.max_tokens
        return await self._client.complete(self._endpoint, prompt_ids, sampling, limit, self._stop_ids)


class Here:
    """A policy in this process: the cost of the loop without HTTP."""

    context: int | None = None

    def __init__(self, ids: list[int]) -> None:
        self._answer = (ids, [-0.5] * len(ids), ["v1"] * len(ids))

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        return Sampled(*self._answer, "stop")


class NoSandbox:
    """Answers every call at once."""

    def __init__(self, output: str) -> None:
        self._output = output

    def is_repeatable(self, name: str) -> bool:
        return True

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        assert (name, list(arguments)) == ("ipython", ["code"])
        return ToolResult(self._output)


class Store:
    """Sends saved turns to the stand-in, as the node agent sends them to the server."""

    def __init__(self, http: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        self._http, self._url = http, f"{endpoint.url}/v1/node/turns"

    async def turns(self, header: TurnsHeader, bodies: Sequence[bytes]) -> None:
        data = header.model_dump_json(exclude_defaults=True).encode() + b"\n" + b"".join(map(framed, bodies))
        async with self._http.put(self._url, data=framed(data)) as answer:
            await answer.read()


@dataclass(frozen=True)
class Figures:
    name: str
    turns: int
    tokens: int
    """Tokens of the last prompt."""
    cpu: float
    """CPU seconds of this process."""

    def line(self) -> str:
        each = 1000 * self.cpu / self.turns
        return f"  {self.name:<34}{self.turns:>7}{self.tokens:>9}{self.turns / self.cpu:>14.0f}{each:>12.2f}"


@dataclass(frozen=True)
class Plan:
    template: ChatTemplate
    turns: int
    ids: list[int]
    """Ids of every answer."""
    output: str
    """Text of every tool result."""

    async def rollout(self, policy: Remote | Here, store: Store | None = None) -> int:
        parser = parser_for(self.template)
        start = [{"role": "system", "content": "Solve it."}, {"role": "user", "content": "What is 3 * 4?"}]
        run = AgentProgress(Conversation(self.template, start, [SCHEMAS["ipython"]], parser=parser))
        tools = cast(Tools, NoSandbox(self.output))
        agent = AgentSpec(max_turns=self.turns)
        sampling, goes_on = Sampling(seed=1, max_tokens=4096), None
        async with contextlib.AsyncExitStack() as stack:
            if store is not None:
                ref = LeaseRef(namespace="default", id="r", fence=1)
                saver = await stack.enter_async_context(TurnSaver(cast(ResultUploads, store), ref, "v1"))
                saver.begin(tools)

                async def save() -> None:
                    saver.goes_on(run)

                goes_on = save
            await run_agent(run, policy, tools, agent, sampling, 0, goes_on=goes_on)
        (segment,) = run.conversation.segments()
        assert (len(run.turns), sum(segment.loss_mask)) == (self.turns, self.turns * len(self.ids))
        return len(segment.token_ids)

    async def measure(
        self, name: str, policy: Remote | Here, rollouts: int, at_once: int, store: Store | None = None
    ) -> Figures:
        tokens = await self.rollout(policy, store)  # warms up
        left = iter(range(rollouts))

        async def worker() -> None:
            for _ in left:
                await self.rollout(policy, store)

        cpu = time.process_time()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        return Figures(name, rollouts * self.turns, tokens, time.process_time() - cpu)


def plan(turns: int, tokens: int) -> Plan:
    template = ChatTemplate.load(MODEL)
    each = tokens // turns
    words = "12 * 34 is 408, so "
    call = f"\n<tool_call>\n{CALL}\n</tool_call>"
    said = words * max((each // 2 - len(template.encode(call))) // len(template.encode(words)), 1)
    ids = [*template.encode(said + call), template.stop_ids[0]]
    line = "4950 and some more of what was printed\n"
    output = line * max((each - len(ids)) // len(template.encode(line)), 1)
    return Plan(template, turns, ids, output)


async def main(rollouts: int, turns: int, tokens: int, at_once: int) -> None:
    work = plan(turns, tokens)
    here = await work.measure("answers in this process", Here(work.ids), rollouts, at_once)
    async with engine(work.ids) as endpoint, aiohttp.ClientSession() as http:
        remote = Remote(TokenClient(http), endpoint, work.template.stop_ids)
        over_http = await work.measure("answers over HTTP", remote, rollouts, at_once)
        saved = await work.measure("answers over HTTP, turns saved", remote, rollouts, at_once, Store(http, endpoint))
    print(f"  {'':<34}{'turns':>7}{'tokens':>9}{'turns/s/core':>14}{'ms a turn':>12}")
    for figures in (here, over_http, saved):
        print(figures.line())
    own = over_http.cpu / over_http.turns
    print("\n  share of a turn outside engine and sandbox (answers over HTTP)")
    for model, tool in TYPICAL:
        print(f"    engine {model:>4g} s, tool {tool:>4g} s a turn: {100 * own / (own + model + tool):6.3f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=40)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8000, help="at the end of a conversation")
    parser.add_argument("--at-once", type=int, default=1, help="rollouts of this process that run together")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        asyncio.run(serve(json.loads(chosen.serve)))
    else:
        asyncio.run(main(chosen.rollouts, chosen.turns, chosen.tokens, chosen.at_once))
