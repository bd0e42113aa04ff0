"""Time of a synchronous step of 64 groups of 8: in the server's order, first come first served, and the oracle's order.

    python -m bench.order [--seeds 4]
    python -m bench.order --vllm [PYTHON] [--rounds 3]   two real vLLM servers, built for CPUs (deploy/vllm/cpu-env.sh)

The oracle knows the length of every rollout; the longest goes first. The server knows the earlier rollouts of each task
(`simulation/steps.py`). Each task has been drawn once before the steps that are measured.

Simulated: four equal model servers share their speed among what runs (`simulation/engine_times.py`), and the server's own
code chooses among them. Their caches hold everything.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import aiohttp

from bench.prefix import MODEL, VLLM_PYTHON, two_vllm_servers
from simulation.routing import Fleet, Rollout, Sim
from simulation.routing_policies import Ours
from simulation.routing_traces import Script, Turn
from simulation.steps import FIFO, GROUPS, ORACLE, ORDERS, OURS, SPREADS, Steps, Waiting

SLOTS = (32, 64)
"""Rollouts at once on each model server."""
SERVERS = 4
TURNS = 5
TASKS = 256
LEARNED_STEPS = TASKS // GROUPS
MEASURED_STEPS = 2 * LEARNED_STEPS
PROMPT_TOKENS, RESULT_TOKENS, TOOL_SECONDS = 200, 40, 0.3
REAL_SLOTS, REAL_MEDIAN, REAL_MOST = 32, 150.0, 3500
"""Rollouts at once on a real server; their median length in tokens, and the greatest length that fits the model."""


class _TimedPolicy(Ours):
    """The server's choice of model servers; measures the rollouts, as the server does."""

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.started: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def start(self, rollout: Rollout) -> str | None:
        found = super().start(rollout)
        if found is not None:
            self.started[rollout.id] = self._sim.now
        return found

    def ended(self, rollout: Rollout) -> None:
        super().ended(rollout)
        self.seconds[rollout.id] = self._sim.now - self.started[rollout.id]


def simulated_step(step: Sequence[Waiting], slots: int) -> tuple[float, list[float]]:
    """Return the time of the step, and the seconds of each rollout."""
    fleet = Fleet((1.0,) * SERVERS, slots=slots, cache_tokens=10**9)
    sim = Sim(fleet, [_script(waiting) for waiting in step], _TimedPolicy, 0, rate=None)
    took = sim.run().seconds
    assert isinstance(sim.policy, _TimedPolicy)
    return took, [sim.policy.seconds[f"r{number}"] for number in range(len(step))]


def _script(waiting: Waiting) -> Script:
    sampled = [waiting.tokens * (i + 1) // TURNS - waiting.tokens * i // TURNS for i in range(TURNS)]
    turns = (Turn(RESULT_TOKENS if i else PROMPT_TOKENS, tokens, TOOL_SECONDS) for i, tokens in enumerate(sampled))
    return Script(f"g{waiting.task.index}", tuple(turns))


@dataclass(frozen=True)
class Case:
    spread: str
    slots: int
    seed: int


def simulate(case: Case, steps: int = MEASURED_STEPS) -> dict[str, list[float]]:
    """Return the times of the measured steps, for each order."""
    trainer = Steps(SPREADS[case.spread], case.seed, TASKS)
    times: dict[str, list[float]] = {order: [] for order in ORDERS}
    for number in range(LEARNED_STEPS + steps):
        drawn = trainer.draw()
        for order in ORDERS if number >= LEARNED_STEPS else (OURS,):
            queue = trainer.queue(drawn, order)
            took, seconds = simulated_step(queue, case.slots)
            times[order].append(took)
            if order == OURS:
                learned = queue, seconds
        trainer.learn(*learned)
    times[OURS] = times[OURS][LEARNED_STEPS:]
    return times


def compare(seeds: int) -> float:
    """Print a row for each spread and number of slots; return the highest ratio of our time to the oracle's."""
    cases = [Case(spread, slots, seed) for spread in SPREADS for slots in SLOTS for seed in range(seeds)]
    with ProcessPoolExecutor(os.cpu_count(), initializer=logging.disable, initargs=[logging.WARNING]) as pool:
        found = dict(zip(cases, pool.map(simulate, cases), strict=True))
    print_header(f"{SERVERS} simulated servers")
    worst = 0.0
    for spread in SPREADS:
        for slots in SLOTS:
            runs = [found[Case(spread, slots, seed)] for seed in range(seeds)]
            means = {order: statistics.mean(t for run in runs for t in run[order]) for order in ORDERS}
            print_row(f"{spread}, {slots} slots each", means)
            worst = max(worst, means[OURS] / means[ORACLE])
    return worst


# two real servers


async def measure(python: str, rounds: int, spreads: int) -> None:
    """Run steps of 64 tasks on two vLLM servers, each step in all three orders."""
    async with two_vllm_servers(python, MODEL) as https:
        await asyncio.gather(*(_sample(http, 64) for http in https for _ in range(REAL_SLOTS)))  # warm up
        print_header(f"2 vLLM servers, {REAL_SLOTS} slots each")
        for name in list(SPREADS)[:spreads]:
            trainer = Steps(replace(SPREADS[name], median=REAL_MEDIAN), seed=0, tasks=GROUPS)
            times: dict[str, list[float]] = {order: [] for order in ORDERS}
            for number in range(1 + rounds):
                drawn = trainer.draw()
                turn = number % len(ORDERS)  # the machine's other work falls on each order in turn
                for order in (*ORDERS[turn:], *ORDERS[:turn]) if number else (OURS,):
                    queue = trainer.queue(drawn, order)
                    took, seconds = await real_step(https, queue)
                    if order == OURS:
                        learned = queue, seconds
                    times[order] += [took] if number else []
                trainer.learn(*learned)
            print_row(name, {order: statistics.mean(times[order]) for order in ORDERS})


async def real_step(https: Sequence[aiohttp.ClientSession], queue: Sequence[Waiting]) -> tuple[float, list[float]]:
    """Return the time of the step, and the seconds of each rollout."""
    waiting, seconds = deque(enumerate(queue)), [0.0] * len(queue)

    async def slot(http: aiohttp.ClientSession) -> None:
        while waiting:
            number, rollout = waiting.popleft()
            began = time.perf_counter()
            await _sample(http, min(rollout.tokens, REAL_MOST))
            seconds[number] = time.perf_counter() - began

    began = time.perf_counter()
    await asyncio.gather(*(slot(http) for _ in range(REAL_SLOTS) for http in https))
    return time.perf_counter() - began, seconds


async def _sample(http: aiohttp.ClientSession, tokens: int) -> None:
    prompt = [11] * PROMPT_TOKENS
    body = {"model": "policy", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0}
    # a server closes idle connections, and between two steps they are idle
    headers = {"Connection": "close"}
    async with http.post("http://engine/v1/completions", json=body, headers=headers) as answer:
        found = await answer.json()
        assert found["usage"]["completion_tokens"] == tokens, found


def print_header(words: str) -> None:
    print(f"{words:46}{'ours, s':>9}{'FIFO, s':>9}{'oracle, s':>11}{'ours/oracle':>13}{'FIFO/oracle':>13}")


def print_row(words: str, means: dict[str, float]) -> None:
    ours, fifo, oracle = means[OURS], means[FIFO], means[ORACLE]
    print(f"{words:46}{ours:>9.1f}{fifo:>9.1f}{oracle:>11.1f}{ours / oracle:>13.3f}{fifo / oracle:>13.3f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--vllm", nargs="?", const=VLLM_PYTHON, help="interpreter that has vLLM")
    options.add_argument("--rounds", type=int, default=3, help="measured steps on the vLLM servers")
    options.add_argument("--spreads", type=int, default=len(SPREADS), help="number of spreads on the vLLM servers")
    given = options.parse_args()
    if given.vllm:
        asyncio.run(measure(given.vllm, given.rounds, given.spreads))
        return
    began = time.perf_counter()
    worst = compare(given.seeds)
    print(f"highest ours/oracle: {worst:.3f} ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
