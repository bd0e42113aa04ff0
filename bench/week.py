"""A simulated week of two autoscaled pools: their demand, their size and its cost.

The decisions are the server's own; Slurm, node agents and model servers are simulated (`simulation.yard`), with waits in the
queue, walltimes, nodes that break and a server that is restarted. The patterns imitate trainers.

    python -m bench.week [PATTERN ...] [--days 7] [--look 16] [--csv FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.reconcilers.autoscaler import FLAP_BUDGET
from simulation.yard import START, Demand, SimulatedPool, Yard

HOUR, DAY = 3600.0, 86400.0
SERVED_DAYS = 3.0
"""Limit after the last submission until all rollouts must have ended."""


def inference_pool(**autoscaling: Any) -> InferencePool:
    spec = {
        "model": {"path": "/models/policy"},
        "engine": {"vllm": {"tensorParallelSize": 2}},
        "autoscaling": {"minReplicas": 1, "maxReplicas": 8, **autoscaling},
        "allocation": {"gpusPerNode": 2, "timeLimit": "08:00:00"},
    }
    return InferencePool.model_validate({"metadata": {"name": "policy", "uid": "ip"}, "spec": spec})


def rollout_pool(**autoscaling: Any) -> RolloutPool:
    stages = {"init": (2, 8), "run": (4, 16), "eval": (2, 8)}
    spec = {
        "inference": {"policy": "policy"},
        "stages": {name: {"workers": {"min": low, "max": high}} for name, (low, high) in stages.items()},
        "autoscaling": {"maxReplicas": 24, **autoscaling},
        "allocation": {"cpusPerTask": 16, "timeLimit": "08:00:00"},
    }
    return RolloutPool.model_validate({"metadata": {"name": "swe", "uid": "rp"}, "spec": spec})


# demand


@dataclass(frozen=True)
class Bursts:
    """Submits numbers of rollouts at fixed times (seconds from the start), independent of earlier ones."""

    at: Sequence[tuple[float, int]]

    def begin(self, yard: Yard) -> None:
        for seconds, count in self.at:
            yard.clock.after(seconds, lambda n=count: yard.submit(n))  # type: ignore[misc]


@dataclass(frozen=True)
class Trainer:
    """Submits steps of rollouts, each when the previous one is complete and has been trained on."""

    begins: float
    ends: float
    rollouts: int
    train_seconds: float

    def begin(self, yard: Yard) -> None:
        yard.clock.after(self.begins, lambda: self._step(yard))

    def _step(self, yard: Yard) -> None:
        if yard.clock.now - START >= self.ends:
            return
        left = self.rollouts

        def done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                yard.clock.after(self.train_seconds, lambda: self._step(yard))

        yard.submit(self.rollouts, done)


@dataclass(frozen=True)
class Mishaps:
    """Restarts the server, and breaks a node, at fixed intervals in seconds."""

    restart_seconds: float
    break_seconds: float

    def begin(self, yard: Yard) -> None:
        self._again(yard, self.restart_seconds, yard.restart_server)
        self._again(yard, self.break_seconds, yard.break_a_node)

    def _again(self, yard: Yard, seconds: float, act: Any) -> None:
        def happen() -> None:
            act()
            yard.clock.after(seconds, happen)

        yard.clock.after(seconds, happen)


def _office(days: float) -> Bursts:
    """People who experiment between nine and six: many small bursts, a few large ones."""
    chance, at = random.Random(9), []
    for day in range(min(math.ceil(days), 5)):
        seconds = day * DAY + 9 * HOUR
        while seconds < day * DAY + 18 * HOUR:
            at.append((seconds, chance.choice([1, 4, 8, 8, 16, 32, 128])))
            seconds += chance.expovariate(1 / 600)
    return Bursts(at)


def patterns(days: float) -> dict[str, list[Demand]]:
    end = days * DAY
    return {
        "trainer": [Trainer(end / 20, end - end / 20, 256, 300.0)],
        "two-trainers": [Trainer(0.0, end, 128, 900.0), Trainer(end / 10, end / 2, 512, 60.0)],
        "office": [_office(days)],
        "sweeps": [Bursts([(day * DAY + 2 * HOUR, 2000) for day in range(math.ceil(days))])],
        "sawtooth": [Bursts([(n * 700.0, 300) for n in range(int(end / 700))])],
        "weekend": [Bursts([(0.0, 400), (0.9 * end, 400)])],
    }


# results


@dataclass
class Sample:
    """One moment of the trace; sizes are (desired, started, ready)."""

    hours: float
    queued: int
    in_flight: int
    node_agents: tuple[int, int, int]
    engines: tuple[int, int, int]


@dataclass
class Trace:
    every: float
    samples: list[Sample] = field(default_factory=list)

    def look(self, yard: Yard) -> None:
        hours = (yard.clock.now - START) / 3600
        if self.samples and hours < self.samples[-1].hours + self.every / 3600:
            return
        queued, in_flight = yard.side.queued().total(), yard.side.in_flight().total()
        self.samples.append(Sample(hours, queued, in_flight, _sizes(yard.side), _sizes(yard.engines)))


def _sizes(pool: SimulatedPool) -> tuple[int, int, int]:
    there = [a.status for a in pool.allocations.values()]
    started = sum(s.job_state == "RUNNING" for s in there)
    return pool.pool.status.replicas.desired, started, sum(s.ready for s in there)


@dataclass(frozen=True)
class Summary:
    submitted: int
    served: int
    wait_median: float
    """Seconds from submit to the start of INIT."""
    wait_p95: float
    gpu_hours: float
    used: float
    """Share of the GPU-hours in which an available session was used."""
    changes: int
    turns: int
    """Most changes of direction of one pool within an hour."""
    above_max: float
    """Minutes above the maximum."""
    below_min: float
    busy_killed: int


def run(
    demands: Iterable[Demand],
    *,
    days: float,
    yard: Yard,
    trace: Trace | None = None,
) -> Summary:
    """Run until everything submitted has ended, at most SERVED_DAYS after the last submission."""
    for demand in demands:
        demand.begin(yard)
    held, seconds, last = 0, 0.0, START

    def looked() -> None:
        nonlocal held, seconds, last
        seconds, last = seconds + held * (yard.clock.now - last), yard.clock.now
        held = sum(map(yard.engines.load, yard.engines.allocations))
        if trace is not None:
            trace.look(yard)

    yard.looked = looked
    yard.clock.run(START + days * DAY)
    until = yard.clock.now + SERVED_DAYS * DAY
    while yard.clock.now < until and any(r.ended is None for r in yard.side.all):
        yard.clock.run(yard.clock.now + HOUR)
    rollouts = yard.side.all
    waits = sorted(r.begun - r.arrived for r in rollouts if r.begun is not None) or [0.0]
    hours = yard.engines.pool.status.gpu_ledger.hours(yard.clock.now)
    bounds, template = yard.engines.pool.spec.autoscaling, yard.engines.pool.spec.allocation
    assert bounds is not None
    room = hours / max(1, template.nodes * template.gpus) * bounds.target_sessions_per_replica
    faults = [pool.faults for pool in yard.pools]
    return Summary(
        submitted=len(rollouts),
        served=sum(r.ended is not None for r in rollouts),
        wait_median=statistics.median(waits),
        wait_p95=waits[int(0.95 * (len(waits) - 1))],
        gpu_hours=hours,
        used=seconds / 3600 / room if room else 0.0,
        changes=sum(f.changes for f in faults),
        turns=max(f.most_turns for f in faults),
        above_max=sum(f.above_max_minutes for f in faults),
        below_min=sum(f.below_min_minutes for f in faults),
        busy_killed=sum(f.busy_killed for f in faults),
    )


# plots


def write_csv(file: Path, samples: Sequence[Sample]) -> None:
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        sizes = [f"{who}_{what}" for who in ("node_agents", "engines") for what in ("desired", "started", "ready")]
        rows.writerow(["hours", "queued", "in_flight", *sizes])
        rows.writerows([f"{s.hours:.3f}", s.queued, s.in_flight, *s.node_agents, *s.engines] for s in samples)


def draw(file: Path, title: str, samples: Sequence[Sample]) -> None:
    """Draw three panels over time: demand, node agents, model servers."""
    from matplotlib.figure import Figure

    days = [s.hours / 24 for s in samples]
    figure = Figure(figsize=(12, 7), layout="constrained")
    demand, *sizes = figure.subplots(3, 1, sharex=True)
    demand.plot(days, [s.queued + s.in_flight for s in samples], color="#888", drawstyle="steps-post")
    demand.set_title("rollouts: queued and in flight", loc="left")
    allocations = {"node agents": [s.node_agents for s in samples], "model servers": [s.engines for s in samples]}
    for (who, counts), axis in zip(allocations.items(), sizes, strict=True):
        for i, (what, color) in enumerate((("desired", "#d62728"), ("started", "#1f77b4"), ("ready", "#2ca02c"))):
            axis.plot(days, [count[i] for count in counts], color=color, drawstyle="steps-post", label=what)
        axis.set_title(f"allocations of {who}", loc="left")
        axis.legend(loc="upper right", ncols=3, frameon=False)
    sizes[-1].set_xlabel("days")
    figure.suptitle(title)
    figure.savefig(file)


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("pattern", nargs="*", choices=[*patterns(7), []], help="all of them when left out")
    options.add_argument("--days", type=int, default=7)
    options.add_argument("--look", type=float, default=16.0, help="seconds between looks")
    options.add_argument("--csv", type=Path, help="writes the trace of the last pattern")
    options.add_argument("--plot", type=Path, help="draws it; the format follows the name, such as week.svg")
    given = options.parse_args()
    known = patterns(given.days)
    names = [f.name for f in fields(Summary)]
    print(f"{'pattern':>13} | {' | '.join(names)} | seconds taken   (turns: budget {FLAP_BUDGET} an hour)")
    for name in given.pattern or known:
        began, trace = time.perf_counter(), Trace(every=60.0)
        yard = Yard(inference_pool(), rollout_pool(), seed=1, look_seconds=given.look)
        summary = run([*known[name], Mishaps(11 * HOUR, 7 * HOUR)], days=given.days, yard=yard, trace=trace)
        cells = " | ".join(f"{_short(getattr(summary, column)):>{len(column)}}" for column in names)
        print(f"{name:>13} | {cells} | {time.perf_counter() - began:.1f}", flush=True)
    if given.csv is not None:
        write_csv(given.csv, trace.samples)
    if given.plot is not None:
        draw(given.plot, f"{name}, {given.days} days", trace.samples)


if __name__ == "__main__":
    main()
