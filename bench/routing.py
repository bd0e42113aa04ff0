"""Choice of a rollout's endpoint: our policy beside round-robin, random, consistent hash and a counter heap.

    python -m bench.routing [--seeds 16] [--rollouts 900]

The endpoints are simulated, with the service times of `engine_times`; what decides is the code of the server itself
(`EndpointChoice`, `Leases`, `Rebalancer`), on a clock that jumps. Traces: the demo's own rollouts, as recorded, and a
synthetic one with heavy tails. Latency is from submission to the last turn, time in the queue included. Load is a share of
what the fleet does with round-robin. The last lines: throughput with and without balancing, and what a choice costs.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutKey
from rollyard.server.routing.endpoint_state import SLOW_START_SECONDS
from rollyard.server_process.parts_and_wakeups import Routing
from rollyard.store.base import RolloutRecord
from rollyard.wire.base import Identity
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.engine import EngineHeartbeat, WeightsReport
from simulation.routing import Fleet, Result, Sim
from simulation.routing_policies import BASELINES, POLICIES
from simulation.routing_traces import TRACES
from tests.support.manual_clock import ManualClock

EQUAL = Fleet((1.0,) * 5)
MIXED = Fleet((1.0, 1.0, 2.0))
CHANGING = Fleet((1.0,) * 5, joins=0.25, dies=0.5)
PAPER = Fleet((1.0,) * 8)
MODERATE, HIGH = 0.6, 0.9
OURS, NONE = "ours", "consistent hash"
FULL, BATCH = 1500, 256


@dataclass(frozen=True)
class Scene:
    name: str
    trace: str
    fleet: Fleet
    load: float


SCENES = (
    Scene("demo trace, moderate", "demo", EQUAL, MODERATE),
    Scene("demo trace, high", "demo", EQUAL, HIGH),
    Scene("heavy tails, moderate", "heavy", EQUAL, MODERATE),
    Scene("heavy tails, high", "heavy", EQUAL, HIGH),
    Scene("capacities 1, 1 and 2, high", "heavy", MIXED, HIGH),
    Scene("one joins, one dies, moderate", "heavy", CHANGING, MODERATE),
)


def one(scene: Scene, policy: str, seed: int, rollouts: int, pace: float) -> Result:
    """Simulate one run; every policy gets the same arrivals."""
    scripts = TRACES[scene.trace](seed, rollouts)
    return Sim(scene.fleet, scripts, POLICIES[policy], seed, rate=scene.load * pace).run()


def pace(trace: str, rollouts: int) -> float:
    """Return the rollouts per second of five equal servers with constant, evenly distributed work."""
    return Sim(EQUAL, TRACES[trace](0, rollouts), POLICIES["round-robin"], 0, rate=None).run().rollouts_a_second


def compare(seeds: int, rollouts: int) -> bool:
    """Print the table; return whether our p90 is never above the best other one by more than chance."""
    jobs = [(scene, policy, seed) for scene in SCENES for policy in POLICIES for seed in range(seeds)]
    with _processes() as pool:
        paces = dict(zip(TRACES, pool.map(pace, TRACES, [rollouts] * len(TRACES)), strict=True))
        given = [(rollouts, paces[scene.trace]) for scene, _, _ in jobs]
        found = list(pool.map(one, *zip(*jobs, strict=True), *zip(*given, strict=True), chunksize=2))
    results = dict(zip(jobs, found, strict=True))
    won = True
    for scene in SCENES:
        print(f"\n{scene.name}: {len(scene.fleet.capacities)} endpoints, {scene.load:.0%} of the fleet's pace")
        print(f"  {'':26}{'p50 s':>9}{'p90 s':>9}{'prefix hits':>13}{'tokens/s':>10}{'p90 beside ours':>17}")
        means = {p: _mean([results[scene, p, seed] for seed in range(seeds)]) for p in POLICIES}
        for policy, mean in means.items():
            beside = f"{mean.p90 / means[OURS].p90:.3f}"
            print(
                f"  {policy:26}{mean.p50:>9.2f}{mean.p90:>9.2f}{mean.hits:>13.1%}{mean.tokens_a_second:>10.0f}{beside:>17}"
            )
        best = min(BASELINES, key=lambda p: means[p].p90)
        apart = [results[scene, OURS, seed].p90 - results[scene, best, seed].p90 for seed in range(seeds)]
        spread = statistics.stdev(apart) / math.sqrt(seeds) if seeds > 1 else math.inf
        mean_apart = statistics.mean(apart)
        won &= mean_apart <= spread
        print(f"  p90 of ours - that of the best other ({best}): {mean_apart:+.3f} s, standard error {spread:.3f}")
    return won


def _mean(results: Sequence[Result]) -> Result:
    return Result(*(statistics.mean(column) for column in zip(*(r.figures for r in results), strict=True)))


def ablation(seeds: int) -> None:
    """Compare hash placement with balancing at full load, until all rollouts are done.

    `BATCH` in flight is the paper's setting: 32 tasks of 8 rollouts on 8 servers. Load beyond a server's share costs
    more the less of it fits into the cache.
    """
    lengths = [sum(t.grown + t.sampled for t in s.turns) for seed in range(seeds) for s in TRACES["heavy"](seed, FULL)]
    share = statistics.mean(lengths) * BATCH / len(PAPER.capacities)
    tight = {n: replace(PAPER, slots=BATCH // len(PAPER.capacities), cache_tokens=int(share / n)) for n in (2, 4, 8)}
    fleets = {
        f"8 equal servers, {PAPER.slots} rollouts each": PAPER,
        "capacities 1, 1 and 2": MIXED,
        **{f"8 equal servers, {BATCH} rollouts, 1/{n} of them in the caches": fleet for n, fleet in tight.items()},
    }
    jobs = [(fleet, policy, seed) for fleet in fleets.values() for policy in (OURS, NONE) for seed in range(seeds)]
    with _processes() as pool:
        found = dict(zip(jobs, pool.map(_until_done, *zip(*jobs, strict=True)), strict=True))
    print("\nrollouts/s with all slots taken, until all are done (the paper's ablation: 32% less without balancing)")
    for words, fleet in fleets.items():
        balanced, fixed = (
            statistics.mean(found[fleet, policy, seed] for seed in range(seeds)) for policy in (OURS, NONE)
        )
        print(f"  {words:55} ours {balanced:5.1f}, by hash of the task {fixed:5.1f}: {1 - fixed / balanced:.0%} less")


def _until_done(fleet: Fleet, policy: str, seed: int) -> float:
    scripts = TRACES["heavy"](seed, FULL)
    return FULL / Sim(fleet, scripts, POLICIES[policy], seed, rate=None).run().seconds


def _processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(os.cpu_count(), initializer=logging.disable, initargs=[logging.WARNING])


# cost of a choice

POOL = PoolKey("default", "policy")
AT_ONCE = 20
"""Choices between two readings of the clock, which costs more than a choice."""


def cost(endpoints: int = 1000, sessions: int = 50_000, choices: int = 20_000) -> None:
    """Measure choices, each as a burst of its own, which is the most expensive way, including the lease's bookkeeping."""
    clock = ManualClock()
    parts = Routing(clock)
    registry, leases, choice = parts.endpoints, parts.leases, parts.choice
    for i in range(endpoints):
        who = Identity(
            allocation=f"a{i}", namespace="default", uid=f"u{i}", job_id="1", instance="i", node=f"n{i // 4}"
        )
        endpoint = Endpoint(id=f"default/a{i}", url=f"https://a{i}", model="m", weights_version="", tokenizer="/t")
        registry.register(POOL, who, endpoint)
        beat = EngineHeartbeat(
            identity=who, url=endpoint.url, ready=True, weights=WeightsReport(version="w"), waiting=0, kv_usage=0.5
        )
        registry.heartbeat(endpoint.id, beat)
    clock.turn(SLOW_START_SECONDS)

    def lease(i: int) -> RolloutRecord:
        found = choice.burst(POOL).checkout(node=f"n{i % (endpoints // 4)}")
        assert found is not None
        return _record(i, found.id)

    for i in range(sessions):
        leases.add(lease(i))
    choosing = booking = 0.0
    for first in range(sessions, sessions + choices, AT_ONCE):
        numbers = range(first, first + AT_ONCE)
        # CPU time: work of other processes does not count
        began = time.process_time()
        found = [choice.burst(POOL).checkout(node=f"n{i % (endpoints // 4)}") for i in numbers]
        choosing += time.process_time() - began
        records = [_record(i, endpoint.id) for i, endpoint in zip(numbers, found, strict=True) if endpoint is not None]
        began = time.process_time()
        for record in records:
            leases.add(record)
        booking += time.process_time() - began
        for i in numbers:
            leases.discard(RolloutKey("default", f"r{i - sessions}"))
    counts = [parts.sessions.count(f"default/a{i}") for i in range(endpoints)]
    us = 1e6 / choices
    print(f"\na choice among {endpoints} endpoints with {sessions} sessions on them, a burst for each: ", end="")
    print(f"{choosing * us:.1f} us, and {booking * us:.1f} us to count it: {(choosing + booking) * us:.1f} us (<= 20)")
    print(f"  sessions on an endpoint afterwards: {min(counts)} to {max(counts)}")


def _record(i: int, endpoint: str) -> RolloutRecord:
    return RolloutRecord(
        "default",
        f"r{i}",
        "",
        "",
        "rp",
        "math",
        None,
        0,
        "train",
        0,
        0.0,
        holder="u/i",
        fence=1,
        endpoints={"policy": endpoint},
    )


def main() -> None:
    logging.disable(logging.WARNING)  # of the server that dies in a scene
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=900)
    given = parser.parse_args()
    began = time.perf_counter()
    won = compare(given.seeds, given.rollouts)
    ablation(given.seeds)
    cost()
    verdict = "nowhere above" if won else "somewhere ABOVE"
    told = f"the p90 of ours is {verdict} the best of the others by more than a standard error"
    print("\n" + (told if given.seeds > 1 else "one seed has no standard error, so it gives no verdict"), end=" ")
    print(f"({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
