"""Time to 32 informative groups of 8: wait for rounds, discard, carry over, or stream.

    python -m bench.dynamic_sampling [--batches 150] [--seed 1]

Durations and rewards are made: lognormal durations by task, Beta distributed pass rates, slots of equal speed. The server's
own code decides (`simulation/batches.py`). Every rule gets the same tasks, and a task has the same rollouts in an epoch.
The figures are from the steady state: the first third of the batches is not counted.

floor: all slots always busy, every task drawn equally often. wasted: share of the sampled tokens that is in no delivered
group. staleness: training steps between the draw of a group and its use. bias: mean seconds of delivered rollouts, divided
by those of all rollouts in informative groups that were drawn. seen: the same as the server reports it. idle: share of
the trainer's time in which it waits. busy: share of the slots' time that is used. over: share of
the delivered groups that are staler than `max_staleness`. most: greatest staleness.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import Future, ProcessPoolExecutor

from simulation.batches import Figures, Load, Tasks, plain_batches, request, run_batches, run_stream

LOADS = (
    Load("256 slots, sigma 0.7 and 0.4", 256, 0.7, 0.4, (0.5, 0.5)),
    Load("256 slots, sigma 1.0 and 0.6", 256, 1.0, 0.6, (0.35, 0.35)),
    Load("512 slots, sigma 1.0 and 0.6, hard tasks longer", 512, 1.0, 0.6, (0.3, 0.5), hard_longer=True),
)
PLAIN, DISCARD, CARRY, PASS = "rounds that wait", "full, discarding", "ours, carry over", "ours, passing over"
RULES = (PLAIN, DISCARD, CARRY, PASS)
BOUNDS = (0, 1, 2, 4)
STREAM_STEPS = 90


def figures(load: Load, rule: str, seed: int, batches: int) -> Figures:
    """Simulate one rule. The first third of the batches is not counted."""
    tasks = Tasks(load, seed)
    warm = batches // 3
    if rule == PLAIN:
        return plain_batches(tasks, batches - warm)
    carry_over = "cancel" if rule == DISCARD else "keep"
    asked = request(load, carry_over=carry_over, pass_over=rule == PASS)
    return run_batches(tasks, asked, batches, warm)


def stream_figures(load: Load, bound: int, seed: int, steps: int = STREAM_STEPS) -> Figures:
    """Simulate a stream whose trainer takes as long for a step as the slots, if always busy, for its groups."""
    tasks = Tasks(load, seed)
    asked = request(load, step_groups=load.target, max_staleness=bound, pass_over=False)
    return run_stream(tasks, asked, tasks.floor, steps, steps // 3)


def print_batches(load: Load, tasks: Tasks, found: dict[str, Figures]) -> None:
    print(f"\n{load.name}: {tasks.informative:.0%} of the groups informative, floor {tasks.floor:.0f} s")
    print(
        f"  {'':20}{'seconds':>9}{'to floor':>10}{'rounds/it':>11}{'busy':>7}{'wasted':>8}{'stale':>7}{'bias':>7}{'seen':>7}"
    )
    for rule, row in found.items():
        seen = "" if row.reported_bias is None else f"{row.reported_bias:.2f}"
        ratios = f"{row.seconds / tasks.floor:>10.2f}{found[PLAIN].seconds / row.seconds:>11.2f}"
        shares = f"{row.busy:>7.0%}{row.wasted:>8.0%}{row.staleness:>7.2f}{row.bias:>7.2f}{seen:>7}"
        print(f"  {rule:20}{row.seconds:>9.0f}{ratios}{shares}")
    print(f"  passing over: {found[CARRY].seconds / found[PASS].seconds:.2f} times faster again")


def print_streams(load: Load, tasks: Tasks, found: dict[int, Figures]) -> None:
    print(f"\nstream, {load.name}: a training step of {load.target} groups takes the floor's {tasks.floor:.0f} s")
    print(
        f"  {'max_staleness':16}{'seconds':>9}{'to floor':>10}{'idle':>7}{'busy':>7}{'wasted':>8}{'stale':>7}{'most':>6}"
        f"{'over':>7}{'bias':>7}"
    )
    for bound, row in found.items():
        ratios = f"{row.seconds / tasks.floor:>10.2f}{row.idle:>7.0%}"
        shares = (
            f"{row.busy:>7.0%}{row.wasted:>8.0%}{row.staleness:>7.2f}{row.stalest:>6}{row.over:>7.1%}{row.bias:>7.2f}"
        )
        print(f"  {bound:<16}{row.seconds:>9.0f}{ratios}{shares}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        runs: dict[tuple[Load, str], Future[Figures]] = {
            (load, rule): pool.submit(figures, load, rule, given.seed, given.batches)
            for load in LOADS
            for rule in RULES
        }
        streams = {
            (load, bound): pool.submit(stream_figures, load, bound, given.seed) for load in LOADS for bound in BOUNDS
        }
        for load in LOADS:
            print_batches(load, Tasks(load, given.seed), {rule: runs[load, rule].result() for rule in RULES})
        for load in LOADS:
            found = {bound: streams[load, bound].result() for bound in BOUNDS}
            print_streams(load, Tasks(load, given.seed), found)
    print(f"\n({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
