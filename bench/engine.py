"""Tokens a second of the embedded engine over HTTP, streamed: 1 to 32 streams at once, beside one request at a time.

    python bench/engine.py [--model DIR] [--tokens 200] [--streams 1 8 16 32]

Baseline: the same requests, one after the other, on the same engine in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

ROOT = Path(__file__).parents[1]
PROMPT_TOKENS = 300


async def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "engine")
        command = [sys.executable, "-m", "rollyard.engine.embedded", "--model", str(options.model)]
        process = await asyncio.create_subprocess_exec(
            *command,
            "--served-name",
            "policy",
            "--uds",
            str(socket),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        try:
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket), limit=0)) as http:
                await _ready(http)
                await _measure(http, options)
        finally:
            process.terminate()
            await process.wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "examples/tiny_policy/model")
    parser.add_argument("--tokens", type=int, default=200, help="sampled in each stream")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16, 32])
    return parser.parse_args()


async def _ready(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                async with http.get("http://engine/health"):
                    return
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)


async def _measure(http: aiohttp.ClientSession, options: argparse.Namespace) -> None:
    numbers = random.Random(0)
    print(f"{PROMPT_TOKENS}-token prompts, {options.tokens} sampled tokens a stream, logprobs and ids streamed")
    print(f"{'streams':>8} {'tok/s':>8} {'one at a time':>14} {'ratio':>6} {'first token ms':>15}")
    for streams in options.streams:
        prompts = [[numbers.randrange(10, 700) for _ in range(PROMPT_TOKENS)] for _ in range(2 * streams)]
        started = time.perf_counter()
        for prompt in prompts[:streams]:
            await _stream(http, prompt, options.tokens)
        alone = streams * options.tokens / (time.perf_counter() - started)
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_stream(http, prompt, options.tokens)) for prompt in prompts[streams:]]
        together = streams * options.tokens / (time.perf_counter() - started)
        first = sorted(task.result() for task in tasks)[streams // 2]
        print(f"{streams:>8} {together:>8.0f} {alone:>14.0f} {together / alone:>6.1f} {1000 * first:>15.0f}")


async def _stream(http: aiohttp.ClientSession, prompt: list[int], tokens: int) -> float:
    """Stream one request; return the seconds to the first token."""
    body = {"model": "policy", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    body |= {"stream": True, "logprobs": 0, "return_token_ids": True}
    started, first, received = time.perf_counter(), 0.0, 0
    async with http.post("http://engine/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                first = first or time.perf_counter() - started
                received += len(json.loads(line[6:])["choices"][0]["token_ids"])
    if received != tokens:
        raise SystemExit(f"asked for {tokens} tokens, got {received}")
    return first


if __name__ == "__main__":
    asyncio.run(main())
