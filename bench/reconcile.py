"""Cost of keeping pools as declared: calls to Slurm, share of a core, and time from a change of spec to sbatch.

The store, the controllers and the reading of squeue's text are real; Slurm, node agents and their jobs are simulated. The
baseline is an operator of the common kind, in which each pool asks Slurm for itself once an interval and reads the answer.

    python -m bench.reconcile [--seconds 20] [--allocations 10 100 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rollyard.core.clock import SystemClock
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectMeta, evolve
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout_pool import RolloutPool, RolloutPoolSpec
from rollyard.reconcilers.job_listings import INTERVAL_SECONDS
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.slurm.base import BatchScript, Job, JobAccount, JobListing, Site
from rollyard.slurm.batch_script import directives
from rollyard.slurm.cli_driver import MARK, QUEUE, read_queue
from rollyard.store.store import Store
from rollyard.wire.base import Identity

PER_POOL = 10
CHANGES = 40
SETTLE_SECONDS = 180.0


class SimulatedSlurm:
    """Jobs start at once and run for ever; a look-up costs as much as parsing squeue's text."""

    name = "simulated"

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.calls = 0
        self.submitted = asyncio.Event()
        self._next = 0

    async def list_jobs(self) -> JobListing:
        self.calls += 1
        taken_at = time.time()
        header = MARK.join(QUEUE) + MARK + "\n"
        return JobListing(taken_at, read_queue(header + "".join(self.rows.values())))

    async def submit(self, script: BatchScript) -> list[str]:
        self._next += 1
        array = directives(script.text).get("array")
        tasks = [""] if array is None else [f"_{n}" for n in range(int(array[2:]) + 1)]
        now = time.time()
        start, end = (datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S") for at in (now, now + 28_800))
        ids = [f"{self._next}{task}" for task in tasks]
        for id in ids:
            fields = (id, script.name, script.comment, "RUNNING", "None", "n1", "0", "0", start, start, end)
            self.rows[id] = MARK.join(fields) + MARK + "\n"
        self.submitted.set()
        return ids

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        for id in ids:
            self.rows.pop(id, None)

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        return {}

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        return None

    async def site(self) -> Site:
        return Site("simulated", {}, {})

    async def close(self) -> None:
        pass


class Bench:
    def __init__(self, folder: Path, store: Store) -> None:
        self.store, self.slurm = store, SimulatedSlurm()
        self.parts = Parts(store, self.slurm, folder, SystemClock(), lease_seconds=3600.0)
        self.manager, self.node_agents = self.parts.manager, self.parts.node_agents

    async def build(self, pools: int) -> None:
        """Create `pools` pools of ten, everything ready."""
        for n in range(pools):
            spec = RolloutPoolSpec.model_validate({"replicas": PER_POOL})
            await self.store.objects.create(RolloutPool(metadata=ObjectMeta(name=f"p{n}"), spec=spec))
        known: set[str] = set()
        async with asyncio.timeout(SETTLE_SECONDS):
            while len(known) < pools * PER_POOL:
                for found in (await self.store.objects.list_objects("Allocation"))[0]:
                    if isinstance(found, Allocation) and found.status.job_id and found.metadata.uid not in known:
                        known.add(found.metadata.uid)
                        self._connect(found)
                await asyncio.sleep(0.2)
        async with asyncio.timeout(SETTLE_SECONDS):
            while not await self._all_ready():
                await asyncio.sleep(0.5)

    async def _all_ready(self) -> bool:
        pools = (await self.store.objects.list_objects("RolloutPool"))[0]
        return all(isinstance(p, RolloutPool) and p.status.replicas.ready == PER_POOL for p in pools)

    def _connect(self, allocation: Allocation) -> None:
        meta = allocation.metadata
        identity = Identity(
            allocation=meta.name, namespace=meta.namespace, uid=meta.uid, job_id="1", instance="bench", node="n1"
        )
        self.node_agents.connect(
            ConnectedNodeAgent(
                identity, PoolKey(meta.namespace, allocation.spec.pool.name), lambda message: None, expel=lambda: None
            )
        )

    async def steady(self, seconds: float) -> tuple[float, float]:
        """Return (look-ups per interval, share of a core) while nothing changes."""
        calls, cpu, began = self.slurm.calls, time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        taken = time.monotonic() - began
        return (self.slurm.calls - calls) * INTERVAL_SECONDS / taken, (time.process_time() - cpu) / taken

    async def change(self, pools: int) -> list[float]:
        """Return the seconds from a change of spec on disk to sbatch, for one change at a time."""
        taken = []
        for n in range(CHANGES):
            name = f"p{n % pools}"
            pool = next(p for p in (await self.store.objects.list_objects("RolloutPool"))[0] if p.metadata.name == name)
            assert isinstance(pool, RolloutPool)
            spec = evolve(pool.spec, replicas=(pool.spec.replicas or 0) + 1)
            self.slurm.submitted.clear()
            began = time.monotonic()
            await self.store.objects.update(evolve(pool, spec=spec), "spec")
            async with asyncio.timeout(30):
                await self.slurm.submitted.wait()
            taken.append(time.monotonic() - began)
            await asyncio.sleep(0.1)
        return taken

    async def each_for_itself(self, pools: int, seconds: float) -> float:
        """Return the baseline's share of a core: every pool queries the queue once per interval."""
        cpu, looks = time.process_time(), int(seconds / INTERVAL_SECONDS * pools)
        for _ in range(looks):
            await self.slurm.list_jobs()
        return (time.process_time() - cpu) / seconds


async def measure(allocations: int, seconds: float) -> None:
    pools = max(1, allocations // PER_POOL)
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as folder:
        store = await Store.open(Path(folder), SystemClock())
        bench = Bench(Path(folder), store)
        running = asyncio.create_task(bench.manager.run())
        try:
            await bench.build(pools)
            calls, share = await bench.steady(seconds)
            waits = await bench.change(pools)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await bench.parts.close()
            await store.close()
        theirs = await bench.each_for_itself(pools, min(seconds, 5.0))
    print(
        f"{pools:5d} {pools * PER_POOL:6d} | {calls:5.2f} {pools:8d} {calls / pools:6.2f} | "
        f"{share:6.1%} {theirs:8.1%} {share / theirs:6.2f} | "
        f"{1e3 * statistics.median(waits):6.0f} {1e3 * sorted(waits)[int(0.9 * len(waits))]:6.0f}",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--allocations", type=int, nargs="+", default=[10, 100, 1000])
    given = options.parse_args()
    print("           look-ups an interval  |  share of a core       | spec to sbatch, ms")
    print("pools allocs |  ours baseline  ratio |   ours baseline  ratio | median    p90")
    for allocations in given.allocations:
        asyncio.run(measure(allocations, given.seconds))


if __name__ == "__main__":
    main()
