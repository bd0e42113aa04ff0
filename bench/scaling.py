"""Rollouts a second with 1 to 64 node agents, the idle share of their stage workers, and the server's CPU for a rollout.

The server is real, in a process of its own. The node agents are real too, all in one other process, but their rollouts
only wait: there is no sandbox, no model and no scoring. INIT takes 10 s, as reported for containers that start together.
RUN and EVAL are chosen so that 64 stage workers finish 0.25 rollouts a second, the pace of one node of ProRL Agent
(arXiv 2603.18815, figure 5). The times are divided by `--speedup`. The server's own times are not, so every delay of the
server weighs that many times as much as in the real case.

The queue is never empty. Busy stage workers are counted every LOOK_SECONDS. The server's CPU time for a rollout is what it
uses above the CPU time of the same server, with the same node agents, before the first rollout. Its wake-ups for a rollout
are counted in the same way: they show how much of its work the server does for several rollouts at once.

    python -m bench.scaling [--node-agents 1 2 4 8 16 64] [--seconds 100] [--speedup 2]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from bench.control_plane import cpu_seconds, null_pool, outcome, started
from rollyard.client import AsyncClient
from rollyard.client.server_link import ServerLink
from rollyard.core.aio import running
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import RolloutRequest, Stage
from rollyard.node import agent
from rollyard.node.agent import NodeAgent
from rollyard.node.lease_run import LeaseRun
from rollyard.tasks.base import Handler, Score
from rollyard.tasks.installed_handlers import load_handlers
from rollyard.trajectory import RunResult

MEAN_SECONDS = {Stage.INIT: 10.0, Stage.RUN: 206.0, Stage.EVAL: 40.0}
SIGMA = {Stage.INIT: 0.1, Stage.RUN: 0.7, Stage.EVAL: 0.5}
"""Sigma of the lognormal times."""
PLACES = 64
WORKERS = {"init": {"min": 3, "max": 16}, "run": {"min": 32, "max": PLACES}, "eval": {"min": 4, "max": 24}}
QUEUED = 32
"""Number of queued rollouts for each node agent."""
SUBMIT = 64
LOOK_SECONDS = 0.05
IDLE_SECONDS, WARM_SECONDS = 15.0, 60.0
TASK = {"kind": "math", "problem": "1+1", "answer": "2"}
RESULT = outcome(tokens=2, prompt=1)


def stage_times(stage: Stage, speedup: float, first: int) -> Iterator[float]:
    """Yield evenly spread quantiles of the stage's times, so that short runs have nearly the same mean as long ones.

    The first times of RUN are cut at evenly spread points, as if these rollouts had begun earlier.
    """
    sigma, golden = SIGMA[stage], (math.sqrt(5) - 1) / 2
    normal = statistics.NormalDist(-(sigma**2) / 2, sigma)
    for number in itertools.count():
        seconds = MEAN_SECONDS[stage] / speedup * math.exp(normal.inv_cdf((0.5 + number * golden) % 1))
        yield seconds * (number + 0.5) / first if stage is Stage.RUN and number < first else seconds


@dataclass
class Tally:
    """Counts over all node agents of a run."""

    times: dict[Stage, Iterator[float]]
    ended: int = 0
    looks: int = 0
    busy: dict[Stage, int] = field(default_factory=lambda: dict.fromkeys(Stage, 0))
    workers: dict[Stage, int] = field(default_factory=lambda: dict.fromkeys(Stage, 0))


class _WaitingRun(LeaseRun):
    """Takes a lease through the stages; each stage only waits."""

    tally: ClassVar[Tally]

    async def _run(self, handler: Handler) -> RunResult:
        for stage in (Stage.INIT, Stage.RUN):
            async with self._stage_worker(stage):
                await asyncio.sleep(next(self.tally.times[stage]))
        return RunResult(outcome=evolve(RESULT, timings=self._timings_now()), artifact={})

    async def _score(self, handler: Handler, run: RunResult, seconds: float) -> Score:
        await asyncio.sleep(next(self.tally.times[Stage.EVAL]))
        return Score(1.0)

    async def run(self) -> None:
        await super().run()
        self.tally.ended += 1


class _WaitingNodeAgent(NodeAgent):
    """A node agent whose rollouts only wait."""

    tally: Tally

    def look(self) -> None:
        """Count busy stage workers."""
        self.tally.looks += 1
        for stage in Stage:
            self.tally.busy[stage] += self._node.pools[stage].in_flight
            self.tally.workers[stage] += self._node.pools[stage].width


@dataclass(frozen=True)
class Figures:
    node_agents: int
    rate: float
    """Rollouts a second."""
    used: float
    """Share of the allocations' places in which a stage worker is busy. It has less noise than the rate."""
    idle: dict[Stage, float]
    all_idle: float
    cpu_ms: float
    """CPU time of the server for one rollout, above that of the idle server."""
    wakeups: float
    """Number of times that a thread of the server woke up for one rollout, above that of the idle server."""
    idle_server: float
    """Share of one core that the server used before the first rollout."""
    server: float
    """Share of one core that the server used."""
    simulation: float
    """Share of one core that the node agents' process used."""


async def measure(node_agents: int, seconds: float, speedup: float) -> Figures:
    """Start a server and a pool of node agents, and measure them in the steady state."""
    with (
        tempfile.TemporaryDirectory(prefix="rollyard-bench-") as home,
        started(["-m", "rollyard.cli.main", "serve", "--data", f"{home}/data"], home) as (pid, line),
    ):
        kubeconfig = Path(json.loads(line)["kubeconfig"])
        pool = {
            "allocation": {"setup": "exec sleep 7200", "timeLimit": "04:00:00", "cpusPerTask": 4},
            "sandbox": {"cpus": 4 / PLACES},
            "stages": {stage: {"workers": workers} for stage, workers in WORKERS.items()},
        }
        async with (
            AsyncClient(kubeconfig=kubeconfig) as client,
            null_pool(client, kubeconfig.parent, node_agents, **pool) as jobs,
        ):
            links = [(ServerLink.open(folder), job) for folder, job in jobs]
            tally = Tally({stage: stage_times(stage, speedup, node_agents * PLACES) for stage in Stage})
            return await _measure(client, links, tally, pid, seconds)


async def _measure(
    client: AsyncClient, links: list[tuple[ServerLink, str]], tally: Tally, pid: int, seconds: float
) -> Figures:
    _WaitingRun.tally, agent.LeaseRun = tally, _WaitingRun  # type: ignore[misc]
    async with AsyncExitStack() as stack:
        nodes = []
        for link, job in links:
            os.environ["SLURM_JOB_ID"] = job
            http, handlers = await stack.enter_async_context(link.session()), load_handlers()
            stack.push_async_callback(handlers.close)
            node = await _WaitingNodeAgent.start(link, http, http, handlers)
            node.tally = tally
            nodes.append(node)
            await stack.enter_async_context(running(node.run(asyncio.Event())))
        await asyncio.sleep(IDLE_SECONDS)
        cpu, woken = cpu_seconds(pid), wakeups(pid)
        await asyncio.sleep(IDLE_SECONDS)
        idle_cpu, idle_woken = (cpu_seconds(pid) - cpu) / IDLE_SECONDS, (wakeups(pid) - woken) / IDLE_SECONDS
        await stack.enter_async_context(running(_submit(client, tally, len(nodes))))
        await _look(nodes, WARM_SECONDS)
        ended, cpu, woken, own = tally.ended, cpu_seconds(pid), wakeups(pid), time.process_time()
        tally.looks, tally.busy, tally.workers = 0, dict.fromkeys(Stage, 0), dict.fromkeys(Stage, 0)
        took = await _look(nodes, seconds)
        ended, cpu, own = tally.ended - ended, cpu_seconds(pid) - cpu, time.process_time() - own
        woken = wakeups(pid) - woken
    idle = {stage: 1 - tally.busy[stage] / tally.workers[stage] for stage in Stage}
    busy = sum(tally.busy.values())
    used, all_idle = busy / tally.looks / PLACES, 1 - busy / sum(tally.workers.values())
    cpu_ms = (cpu - idle_cpu * took) / ended * 1000
    per_rollout = (woken - idle_woken * took) / ended
    return Figures(
        len(nodes), ended / took, used, idle, all_idle, cpu_ms, per_rollout, idle_cpu, cpu / took, own / took
    )


def wakeups(pid: int) -> int:
    """Return how often the threads of a process have waited and woken up again."""
    lines = [
        line for task in Path(f"/proc/{pid}/task").iterdir() for line in (task / "status").read_text().splitlines()
    ]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


async def _look(nodes: list[_WaitingNodeAgent], seconds: float) -> float:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        for node in nodes:
            node.look()
        await asyncio.sleep(LOOK_SECONDS)
    return passed


async def _submit(client: AsyncClient, tally: Tally, node_agents: int) -> None:
    submitted = 0
    while True:
        while submitted - tally.ended < node_agents * (PLACES + QUEUED):
            ids = range(submitted, submitted + SUBMIT)
            await client.submit(
                [RolloutRequest.model_validate({"id": f"r-{i}", "pool": "null", "task": TASK}) for i in ids]
            )
            submitted += SUBMIT
        await asyncio.sleep(0.05)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--node-agents", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64])
    options.add_argument(
        "--seconds", type=float, default=100.0, help="time that is measured for each number of node agents"
    )
    options.add_argument("--speedup", type=float, default=2.0, help="divisor of the stage times")
    given = options.parse_args()
    logging.disable(logging.WARNING)
    print(f"stage times / {given.speedup:g}: ", end="")
    print(", ".join(f"{stage} {mean / given.speedup:.2f} s" for stage, mean in MEAN_SECONDS.items()))
    print(
        f"{'nodes':>6}{'rollouts/s':>12}{'of linear':>11}{'used':>7}{'idle: INIT':>12}{'RUN':>7}{'EVAL':>7}{'all':>7}",
        end="",
    )
    print(f"{'server: ms':>12}{'wake-ups':>10}{'idle':>7}{'busy':>6}{'nodes busy':>13}")
    rows = list[Figures]()
    for node_agents in given.node_agents:
        row = asyncio.run(measure(node_agents, given.seconds, given.speedup))
        rows.append(row)
        linear = row.rate / node_agents / (rows[0].rate / rows[0].node_agents)
        idle = "".join(f"{row.idle[stage]:>{width}.1%}" for stage, width in zip(Stage, (12, 7, 7), strict=True))
        print(f"{node_agents:>6}{row.rate:>12.2f}{linear:>11.1%}{row.used:>7.1%}{idle}{row.all_idle:>7.1%}", end="")
        print(f"{row.cpu_ms:>12.2f}{row.wakeups:>10.1f}{row.idle_server:>7.1%}{row.server:>6.0%}", end="")
        print(f"{row.simulation:>13.0%}", flush=True)
    mean = statistics.mean(row.cpu_ms for row in rows)
    furthest = max(abs(row.cpu_ms / mean - 1) for row in rows)
    print(f"server CPU ms a rollout above the idle server: mean {mean:.1f}, furthest row {furthest:.0%} from it")


if __name__ == "__main__":
    main()
