"""Time from nothing to a number of running allocations: a pool beside a bare `sbatch --array`, on a real Slurm.

It starts a throwaway cluster. The allocations run `sleep` in place of node agents, so that the time contains Slurm's work
and Rollyard's, and not that of many Python processes on one machine. Rounds alternate.

    python -m bench.burst [--size 64] [--rounds 12]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from deploy.slurm.throwaway.cluster import down, up
from deploy.slurm.throwaway.options import Options
from rollyard.client import AsyncClient
from rollyard.core.errors import NotFound
from rollyard.kinds.base import ObjectKey, ObjectMeta
from rollyard.kinds.rollout_pool import RolloutPool, RolloutPoolSpec
from rollyard.slurm.cli_driver import CliDriver

ROOT = Path(__file__).resolve().parents[1]
CPUS = 8
KEY = ObjectKey(kind="RolloutPool", namespace="default", name="burst")
LIMIT_SECONDS = 120.0
QUIET_SECONDS = 2.0
"""Pause between two measurements: slurmctld still cleans up after ended jobs.

Up to one more second is added at random: an array starts with the scheduler's next tick, and neither side may always
meet the same phase of it.
"""


async def running(driver: CliDriver, size: int) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while sum(j.state == "RUNNING" for j in (await driver.list_jobs()).jobs.values()) < size:
            await asyncio.sleep(0.02)


async def none_live(driver: CliDriver) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while any(not j.state.ended for j in (await driver.list_jobs()).jobs.values()):
            await asyncio.sleep(0.05)
        while any(node.state != "idle" for node in (await driver.site()).nodes.values()):
            await asyncio.sleep(0.05)
    await asyncio.sleep(QUIET_SECONDS + random.random())


async def bare(driver: CliDriver, size: int, env: dict[str, str]) -> float:
    began = time.monotonic()
    command = ["sbatch", "--parsable", f"--array=0-{size - 1}", "--job-name=rollyard-bare", "--output=/dev/null"]
    submit = await asyncio.create_subprocess_exec(
        *command, "--wrap=exec sleep 600", env=env, stdout=asyncio.subprocess.PIPE
    )
    id = (await submit.communicate())[0].decode().strip()
    await running(driver, size)
    taken = time.monotonic() - began
    await driver.cancel([id])
    await none_live(driver)
    return taken


async def ours(driver: CliDriver, size: int, kubeconfig: Path) -> tuple[float, int]:
    """Return (seconds, calls of sbatch)."""
    spec = {"replicas": size, "allocation": {"setup": "exec sleep 600", "timeLimit": "01:00:00"}}
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        began = time.monotonic()
        await client.apply(RolloutPool(metadata=ObjectMeta(name=KEY.name), spec=RolloutPoolSpec.model_validate(spec)))
        await running(driver, size)
        taken = time.monotonic() - began
        submits = {id.partition("_")[0] for id, j in (await driver.list_jobs()).jobs.items() if not j.state.ended}
        await client.delete(KEY)
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                try:
                    await client.get(KEY)
                except NotFound:
                    break
                await asyncio.sleep(0.1)
    await none_live(driver)
    return taken, len(submits)


async def measure(size: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="rollyard-burst-") as folder:
        daemons, _ = up(Path(folder) / "slurm", Options(nodes=-(-size // CPUS), cpus=CPUS))
        env = {**os.environ, **daemons.environment, "HOME": folder}
        command = [sys.executable, "-m", "rollyard.cli.main", "serve", "--data", f"{folder}/data", "--cluster", "slurm"]
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        server = await asyncio.create_subprocess_exec(*command, env=env, cwd=ROOT, stdout=pipe, stderr=null)
        try:
            assert server.stdout is not None
            kubeconfig = Path(json.loads(await server.stdout.readline())["kubeconfig"])
            driver = CliDriver(env)
            found = [(await bare(driver, size, env), *await ours(driver, size, kubeconfig)) for _ in range(rounds)]
        finally:
            server.send_signal(signal.SIGTERM)
            await server.wait()
            down(Path(folder) / "slurm")
    print("seconds of sbatch --array and of ours, by round:", ", ".join(f"{row[0]:.2f} {row[1]:.2f}" for row in found))
    theirs, own = (statistics.median(row[i] for row in found) for i in (0, 1))
    print(f"0 to {size} allocations, all RUNNING, median of {rounds}: ours {own:.2f} s, sbatch --array {theirs:.2f} s, "
          f"ratio {own / theirs:.2f}; calls of sbatch: {max(row[2] for row in found)}")  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", type=int, default=64)
    options.add_argument("--rounds", type=int, default=12)
    given = options.parse_args()
    asyncio.run(measure(given.size, given.rounds))


if __name__ == "__main__":
    main()
