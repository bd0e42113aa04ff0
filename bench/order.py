"""Time of a synchronous step of 64 groups of 8: in the server's order, first come first served, and the oracle's order.

    python -m bench.order [--seeds 8]
    python -m bench.order --vllm [PYTHON] [--rounds 5] [--seed 0]
                                                two real vLLM servers, built for CPUs (deploy/vllm/cpu-env.sh)

The oracle knows the length of every rollout; the longest goes first. The server knows the earlier rollouts of each task
(`simulation/steps.py`). Each task has been drawn once before the steps that are measured.

Simulated: four equal model servers share their speed among what runs (`simulation/engine_times.py`), and the server's own
code chooses among them. Their caches hold everything. A fourth order knows the true mean length of each task.

Real: the same step takes a different time each time. So each round measures the step in all orders, in the oracle's order
twice, and the ratios are taken within a round. The ratio of the oracle's two times shows the noise.
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
from simulation.steps import FIFO, GROUPS, MEANS, ORACLE, ORDERS, OURS, SPREADS, Steps, Waiting

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
SIMULATED_ORDERS = (*ORDERS, MEANS)
AGAIN = "oracle again"
REAL_ORDERS = (*ORDERS, AGAIN)


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
    times: dict[str, list[float]] = {order: [] for order in SIMULATED_ORDERS}
    for number in range(LEARNED_STEPS + steps):
        drawn = trainer.draw()
        for order in SIMULATED_ORDERS if number >= LEARNED_STEPS else (OURS,):
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
            means = {order: statistics.mean(t for run in runs for t in run[order]) for order in SIMULATED_ORDERS}
            print_row(f"{spread}, {slots} slots each", means)
            worst = max(worst, means[OURS] / means[ORACLE])
    return worst


# two real servers


async def measure(python: str, rounds: int, spreads: int, seed: int) -> None:
    """Run steps of 64 tasks on two vLLM servers, each step in all orders."""
    async with two_vllm_servers(python, MODEL, own_cores=True) as https:
        await asyncio.gather(*(_sample(http, 64) for http in https for _ in range(REAL_SLOTS)))  # warm up
        for name in list(SPREADS)[:spreads]:
            print(f"{name}; 2 vLLM servers, {REAL_SLOTS} slots each")
            print(f"{'':16}" + "".join(f"{order + ', s':>28}" for order in REAL_ORDERS))
            trainer = Steps(replace(SPREADS[name], median=REAL_MEDIAN), seed, tasks=GROUPS)
            times: dict[str, list[float]] = {order: [] for order in REAL_ORDERS}
            for number in range(1 + rounds):
                drawn = trainer.draw()
                turn = number % len(REAL_ORDERS)  # the machine's other work falls on each order in turn
                for order in (*REAL_ORDERS[turn:], *REAL_ORDERS[:turn]) if number else (OURS,):
                    queue = trainer.queue(drawn, ORACLE if order == AGAIN else order)
                    took, seconds = await real_step(https, queue)
                    if order == OURS:
                        learned = queue, seconds
                    times[order] += [took] if number else []
                trainer.learn(*learned)
                if number:
                    print_times(f"round {number}", {order: times[order][-1] for order in REAL_ORDERS})
            print_times("median", {order: statistics.median(times[order]) for order in REAL_ORDERS})
            oracle = [(a + b) / 2 for a, b in zip(times[ORACLE], times[AGAIN], strict=True)]
            print_ratios("ours / mean of both oracles", times[OURS], oracle)
            print_ratios("FIFO / mean of both oracles", times[FIFO], oracle)
            print_ratios("oracle again / oracle", times[AGAIN], times[ORACLE])


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


def print_times(words: str, times: dict[str, float]) -> None:
    print(f"{words:16}" + "".join(f"{times[order]:>28.1f}" for order in REAL_ORDERS), flush=True)


def print_ratios(words: str, times: Sequence[float], others: Sequence[float]) -> None:
    ratios = [a / b for a, b in zip(times, others, strict=True)]
    print(f"{words}: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}", flush=True)


def print_header(words: str) -> None:
    print(
        f"{words:46}{'ours, s':>9}{'FIFO, s':>9}{'oracle, s':>11}{'ours/oracle':>13}{'means/oracle':>14}{'FIFO/oracle':>13}"
    )


def print_row(words: str, means: dict[str, float]) -> None:
    ours, fifo, oracle, known = means[OURS], means[FIFO], means[ORACLE], means[MEANS]
    ratios = f"{ours / oracle:>13.3f}{known / oracle:>14.3f}{fifo / oracle:>13.3f}"
    print(f"{words:46}{ours:>9.1f}{fifo:>9.1f}{oracle:>11.1f}{ratios}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=8)
    options.add_argument("--vllm", nargs="?", const=VLLM_PYTHON, help="interpreter that has vLLM")
    options.add_argument("--rounds", type=int, default=5, help="measured steps on the vLLM servers")
    options.add_argument("--spreads", type=int, default=len(SPREADS), help="number of spreads on the vLLM servers")
    options.add_argument("--seed", type=int, default=0, help="seed of the lengths on the vLLM servers")
    given = options.parse_args()
    if given.vllm:
        asyncio.run(measure(given.vllm, given.rounds, given.spreads, given.seed))
        return
    began = time.perf_counter()
    worst = compare(given.seeds)
    print(f"highest ours/oracle: {worst:.3f} ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
