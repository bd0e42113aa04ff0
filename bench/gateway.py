"""Time that the gateway adds to a model call, in front of a model server without a model that answers at a set pace.

    python -m bench.gateway [--calls 200] [--streams 256]

Client, gateway and model server are a process each. Ours: streamed `/v1/chat/completions` of sessions that grow turn by turn,
to the last byte. Baselines, call by call in between: the same calls at the model server itself, which then renders and
tokenises as chat servers do, here with the same template and tokenizer; and, for what the way of bytes costs alone, the same
prompt as ids.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
from aiohttp import web

from rollyard.gateway.app import build
from rollyard.gateway.external.call_journal import StoringJournal
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.rollout import Sampling
from rollyard.store.store import Store
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.token_client import TokenClient
from rollyard.trajectory.stored_session import SessionProgress, StoredSession
from rollyard.wire.endpoint import Endpoint
from simulation.endpoint_sampler import EndpointSampler
from simulation.upstream import Upstream

MODEL = Path(__file__).parents[1] / "examples" / "tiny_policy" / "model"
ANSWER = "The answer is written in the file, and so the next thing to do is to look at it once more. "
TURNS = 8
"""Turns of a session, before the next one begins."""
WARM_UP = 10
STORED = "stored"
"""Beginning of the names of sessions whose calls are stored before they are answered, as for external agents."""
AT_MOST_MS, FREE_WITHIN_MS = 2.0, 500.0


async def serve_upstream(pace: float) -> None:
    template = ChatTemplate.load(MODEL)
    answer = [*template.encode(ANSWER), template.stop_ids[0]]
    async with Upstream(lambda number, prompt: answer, pace, template=template).serving() as upstream:

        async def running(_: web.Request) -> web.Response:
            return web.json_response(upstream.running)

        await _serve({"/running": running}, None, upstream.url)


async def serve_gateway(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await Store.open(Path(folder))
        await _serve_sessions(url, store)
        await store.close()


async def _serve_sessions(url: str, store: Store) -> None:
    template = ChatTemplate.load(MODEL)
    sessions: dict[str, GatewaySession] = {}

    async def journal(name: str) -> StoringJournal:
        await store.sessions.add(StoredSession(name, name, "default", "policy", "{}", 0.0, "policy", ""))
        return StoringJournal(
            store.sessions, name, lambda: SessionProgress(sessions[name].calls, sessions[name].tokens)
        )

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        endpoint = Endpoint(id="e", url=url, model="policy", weights_version="v1", tokenizer="")
        policy = EndpointSampler(TokenClient(http), endpoint, template.stop_ids)

        async def find(_: web.Request, named: str | None) -> GatewaySession:
            assert named is not None
            if named not in sessions:
                kept = await journal(named) if named.startswith(STORED) else None
                config = SessionConfig("policy", Sampling())
                sessions[named] = GatewaySession(named, template, policy, config, journal=kept)
            return sessions[named]

        async def running(_: web.Request) -> web.Response:
            return web.json_response(sum(s.in_flight for s in sessions.values()))

        await _serve({"/running": running}, build(find), "")


async def _serve(routes: dict[str, Callable[[web.Request], object]], app: web.Application | None, also: str) -> None:
    """Serve until standard input ends; print the address in one line."""
    outer = app or web.Application()
    for path, handler in routes.items():
        outer.router.add_get(path, handler)  # type: ignore[arg-type]
    runner = web.AppRunner(
        outer, handler_cancellation=True, access_log=None, auto_decompress=False, shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    host, port = runner.addresses[0][:2]
    print(json.dumps({"url": f"http://{host}:{port}", "also": also}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


@contextlib.contextmanager
def child(*words: str) -> Iterator[dict[str, str]]:
    command = [sys.executable, "-m", "bench.gateway", *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


async def direct(http: aiohttp.ClientSession, url: str, prompt: Sequence[int]) -> float:
    body = {"model": "policy", "prompt": list(prompt), "max_tokens": 1000, "stream": True}
    started = time.perf_counter()
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        await answer.read()
    return time.perf_counter() - started


async def chat(http: aiohttp.ClientSession, url: str, messages: list[dict[str, str]]) -> float:
    """Call the model server, or a session at the gateway, at `url`."""
    body = {"model": "policy", "messages": messages, "max_tokens": 1000, "stream": True}
    started = time.perf_counter()
    async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
        data = await answer.read()
        assert data.endswith(b"data: [DONE]\n\n"), data[-500:]
    return time.perf_counter() - started


def grown(turn: int) -> list[dict[str, str]]:
    """Return a session's messages at its n-th turn."""
    messages = [{"role": "system", "content": "You are an agent. " * 40}, {"role": "user", "content": "Begin. " * 40}]
    for number in range(turn):
        messages.append({"role": "assistant", "content": ANSWER.strip()})
        messages.append({"role": "user", "content": f"Go on with part {number}. " * 20})
    return messages


async def one_by_one(
    http: aiohttp.ClientSession, upstream: str, gateway: str, calls: int
) -> tuple[list[float], list[float], list[float], list[float]]:
    ids, theirs, ours, stored = [], [], [], []
    template = ChatTemplate.load(MODEL)
    prompts = [template.encode(template.render(grown(turn), [], True)) for turn in range(TURNS)]
    for number in range(calls + WARM_UP):
        session, turn = divmod(number, TURNS)
        ids.append(await direct(http, upstream, prompts[turn]))
        theirs.append(await chat(http, upstream, grown(turn)))
        ours.append(await chat(http, f"{gateway}/s/one{session}", grown(turn)))
        stored.append(await chat(http, f"{gateway}/s/{STORED}{session}", grown(turn)))
    return ids[WARM_UP:], theirs[WARM_UP:], ours[WARM_UP:], stored[WARM_UP:]


async def at_once(
    http: aiohttp.ClientSession, upstream: str, gateway: str, streams: int
) -> tuple[list[float], list[float], list[float]]:
    theirs = await asyncio.gather(*(chat(http, upstream, grown(0)) for _ in range(streams)))
    ours = await asyncio.gather(*(chat(http, f"{gateway}/s/many{i}", grown(0)) for i in range(streams)))
    stored = await asyncio.gather(*(chat(http, f"{gateway}/s/{STORED}m{i}", grown(0)) for i in range(streams)))
    return theirs, ours, stored


async def until_free(http: aiohttp.ClientSession, upstream: str, gateway: str, times: int) -> list[float]:
    """Measure from closing a stream halfway until neither the session nor the model server has a call in flight."""
    seconds = []
    for number in range(times):
        body = {"model": "policy", "messages": grown(0), "stream": True, "max_tokens": 1000}
        answer = await http.post(f"{gateway}/s/leave{number}/v1/chat/completions", json=body)
        await answer.content.readany()
        started = time.perf_counter()
        answer.close()
        for url in (gateway, upstream):
            while await _running(http, url):
                await asyncio.sleep(0.001)
        seconds.append(time.perf_counter() - started)
    return seconds


async def _running(http: aiohttp.ClientSession, url: str) -> int:
    async with http.get(f"{url}/running") as answer:
        return int(await answer.json())


def row(name: str, seconds: Sequence[float]) -> None:
    ordered = sorted(seconds)
    p90 = ordered[int(0.9 * (len(ordered) - 1))] * 1000
    print(
        f"  {name:<52}{len(ordered):>6}{statistics.median(ordered) * 1000:>12.2f}{p90:>10.2f}{ordered[-1] * 1000:>10.2f}"
    )


async def measure(calls: int, streams: int) -> None:
    print(f"\n  {'':<52}{'calls':>6}{'median ms':>12}{'p90 ms':>10}{'max ms':>10}")
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        with child("--upstream", "0.005") as up, child("--gateway", up["also"]) as front:
            ids, theirs, ours, stored = await one_by_one(http, up["also"], front["url"], calls)
            row("ids, direct, one at a time", ids)
            row("chat, direct, one at a time", theirs)
            row("chat, through the gateway, one at a time", ours)
            row("the same, stored before it is answered", stored)
        with child("--upstream", "0.1") as up, child("--gateway", up["also"]) as front:
            many, through, through_stored = await at_once(http, up["also"], front["url"], streams)
            row(f"chat, direct, {streams} at once, an id every 100 ms", many)
            row(f"chat, through the gateway, {streams} at once", through)
            row("the same, stored before it is answered", through_stored)
            free = await until_free(http, f"{up['url']}", front["url"], 50)
            row("a caller leaves: its session and the engine are free", free)
    more, more_than_ids = ((statistics.median(ours) - statistics.median(base)) * 1000 for base in (theirs, ids))
    print(f"\noverhead of a call at the median: {more:.2f} ms (at most {AT_MOST_MS:g})", end="; ")
    print(f"beside a prompt that is ids already: {more_than_ids:.2f} ms")
    print(f"storing a call: {(statistics.median(stored) - statistics.median(ours)) * 1000:.2f} ms at the median")
    print(f"free after a disconnect, at worst: {max(free) * 1000:.0f} ms (at most {FREE_WITHIN_MS:g})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--upstream", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--gateway", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as in node agents
    if chosen.upstream is not None:
        asyncio.run(serve_upstream(chosen.upstream))
    elif chosen.gateway is not None:
        asyncio.run(serve_gateway(chosen.gateway))
    else:
        asyncio.run(measure(chosen.calls, chosen.streams))


if __name__ == "__main__":
    main()
