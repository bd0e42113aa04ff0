"""The server of another checkout beside this one's, in turn: its start, its memory, and null rollouts.

The other checkout has a `.venv` of its own. Each round measures both, and each measurement has a new data folder. The figures
are medians over the rounds, with their range; a ratio is taken within a round.

    python -m bench.side_by_side OTHER_CHECKOUT [--rounds 4] [--rollouts 2000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

IDLE_SECONDS = 3.0
SUBMITS = 300
"""Submits of one rollout whose time is measured, one after another: a machine that is busy with other work follows too."""
ROWS = {
    "start": "server start, s",
    "start_cpu": "CPU of the start, s",
    "idle": "memory when idle, MB",
    "idle_share": "CPU when idle, % of a core",
    "used": "memory after the rollouts, MB",
    "rate": "null rollouts a second",
    "cpu": "server CPU a rollout, ms",
    "p50": "submit of one rollout, ms: median",
    "p99": "submit of one rollout, ms: p99",
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("other", type=Path)
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--rollouts", type=int, default=2000)
    options.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(asyncio.run(_measure(given.rollouts))))
        return
    checkouts = [Path(__file__).resolve().parents[1], given.other.resolve()]
    found: list[list[dict[str, float]]] = [[], []]
    for n in range(given.rounds):
        for i in (0, 1) if n % 2 else (1, 0):
            found[i].append(_measured(checkouts[i], given.rollouts))
            print(f"round {n + 1}, {'other' if i else 'this'}: {found[i][-1]}", file=sys.stderr)
    print(f"{'median (range)':38}{'this':>26}{'other':>26}{'ratio (range)':>26}")
    for row, name in ROWS.items():
        this, other = ([one[row] for one in some] for some in found)
        ratios = [a / b for a, b in zip(this, other, strict=True) if b]
        print(f"{name:38}{_range(this):>26}{_range(other):>26}{_range(ratios):>26}")
    print(f"load average of the last minute: {os.getloadavg()[0]:.0f}, with these processes")


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-"


def _measured(checkout: Path, rollouts: int) -> dict[str, float]:
    """Measure in a checkout, by its own interpreter and its own benchmark of the control plane."""
    command = [f"{checkout}/.venv/bin/python", __file__, str(checkout), "--measure", "--rollouts", str(rollouts)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=checkout, env=environment)
    result: dict[str, float] = json.loads(done.stdout)
    return result


async def _ended(client: Any, submit: Callable[..., Awaitable[None]], rollouts: int, prefix: str) -> None:
    """Submit rollouts, and wait until all have ended."""
    before = (await client.counts(pool="null"))["Completed"]
    await submit(client, rollouts, prefix)
    while (await client.counts(pool="null"))["Completed"] < before + rollouts:
        await asyncio.sleep(0.02)


async def _measure(rollouts: int) -> dict[str, float]:
    from bench import control_plane as bench
    from bench.sessions import _resident_bytes
    from rollyard.client import AsyncClient

    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as folder:
        began = time.perf_counter()
        with bench.started(["-m", "rollyard.cli.main", "serve", "--data", f"{folder}/data"], folder) as (pid, line):
            start, start_cpu = time.perf_counter() - began, bench.cpu_seconds(pid)
            await asyncio.sleep(IDLE_SECONDS)  # the memory and the share of a server that does nothing
            cpu, since = bench.cpu_seconds(pid), time.perf_counter()
            await asyncio.sleep(IDLE_SECONDS)
            idle_share = (bench.cpu_seconds(pid) - cpu) / (time.perf_counter() - since) * 100
            idle, kubeconfig = _resident_bytes(pid) / 1e6, Path(json.loads(line)["kubeconfig"])
            async with (
                AsyncClient(kubeconfig=kubeconfig) as client,
                bench.null_pool(client, kubeconfig.parent, 1) as ((job_folder, job),),
            ):
                with bench._node_process(job_folder, job):
                    await _ended(client, bench.submit, bench.BATCH, "warm")
                    cpu, since = bench.cpu_seconds(pid), time.perf_counter()
                    await _ended(client, bench.submit, rollouts, "null")
                    rate = rollouts / (time.perf_counter() - since)
                    spent = (bench.cpu_seconds(pid) - cpu) / rollouts * 1000
                    used = _resident_bytes(pid) / 1e6
                    times = []
                    for n in range(SUBMITS):
                        since = time.perf_counter()
                        await bench.submit(client, 1, f"one-{n}")
                        times.append(time.perf_counter() - since)
    p50, p99 = (sorted(times)[int(len(times) * share)] * 1000 for share in (0.5, 0.99))
    return {
        "start": start, "start_cpu": start_cpu, "idle": idle, "idle_share": idle_share, "used": used, "rate": rate,
        "cpu": spent, "p50": p50, "p99": p99,
    }  # fmt: skip


if __name__ == "__main__":
    main()
