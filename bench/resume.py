"""Cost of saved turns and snapshots where nothing fails: whole rollouts with `resume: auto` beside `resume: never`, in turn.

    python -m bench.resume [--rounds 2] [--at-once 4] [--turns 16] [--seconds 3] [--files 2000]

Server, node agent and sandboxes are real; a scripted model has the turns. The first turn makes a tree of files of 4 KB. Each
further one changes three of its files, compiles a folder of it and waits for `--seconds`, as a run of tests would. A round is
`--at-once` rollouts of one kind, and then as many of the other kind. A first one, of `never`, does not count.

The ratio compares the seconds of RUN. The share of snapshots is what the rollouts waited for them, as the node agent measured
it. CPU seconds are those of the server and the node agent without sandboxes. Unlike the ratio they hardly depend on what else
the machine does. Memory is the greatest resident memory of the node agent so far (VmHWM), behind each round. Server bytes are
the most that were stored at a time, as `rollyard describe` shows them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from pathlib import Path

from rollyard.client import AsyncClient
from rollyard.core.aio import running
from rollyard.kinds.rollout import RolloutRequest
from rollyard.trajectory import Trajectory
from tests.support.file_work import ANSWER, stem_task
from tests.support.scripted_agent import call
from tests.support.scripted_engine import scripted_pool
from tests.support.yard import MODEL, Yard, end

WAYS = ("auto", "never")
LOOK_SECONDS = 0.5
TREE = (
    "import os\n"
    "for n in range({files}):\n"
    "    os.makedirs(f'tree/d{{n // 100}}', exist_ok=True)\n"
    "    open(f'tree/d{{n // 100}}/m{{n}}.py', 'w').write(f'x = {{n}}\\n' * (4096 // len(f'x = {{n}}\\n')))\n"
)


def turns_of(turns: int, seconds: float, files: int) -> list[str]:
    said = [call("bash", command=f'python3 -c "{TREE.format(files=files)}"')]
    for turn in range(turns - 2):
        changed = " ".join(f"tree/d{n // 100}/m{n}.py" for n in (turn, turn + 100, turn + 200))
        work = f"for f in {changed}; do echo 'y = {turn}' >> $f; done; python3 -m compileall -q tree/d{turn % 3}"
        said.append(call("bash", command=f"{work}; sleep {seconds:g}"))
    return [*said, ANSWER]


def peak_mib(yard: Yard) -> float:
    found = []
    for pid in yard.processes("node-agent", "--allocation"):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found.append(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024)
    return max(found)


def cpu_seconds(yard: Yard) -> float:
    """Return the CPU time that the server and the node agents have used so far."""
    assert yard.server is not None
    pids = [yard.server.pid, *yard.processes("node-agent", "--allocation")]
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


async def watch_bytes(client: AsyncClient, most: dict[str, int]) -> None:
    while True:
        for pool in (await client.top("default")).rollout_pools:
            for what, size in (("turns", pool.saved.turns), ("snapshots", pool.saved.snapshots)):
                most[what] = max(most.get(what, 0), size)
        await asyncio.sleep(LOOK_SECONDS)


async def round_of(yard: Yard, client: AsyncClient, way: str, number: int, at_once: int) -> list[Trajectory]:
    requests = [
        RolloutRequest.model_validate(
            {"id": f"{way}-{number}-{n}", "pool": "demo", "task": stem_task("tree"), "agent": {"resume": way}}
        )
        for n in range(at_once)
    ]
    return await yard.gather(client, await client.submit(requests), 3600)


async def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        yard = Yard(Path(folder))
        said = turns_of(options.turns, options.seconds, options.files)
        policy = scripted_pool(yard.folder, MODEL, {"tree": said})
        width = {"min": options.at_once, "max": options.at_once}
        stages = {"init": {"workers": width}, "run": {"workers": width, "timeoutSeconds": 900}}
        try:
            yard.start()
            async with yard.client() as client:
                await yard.apply(client, policy={**policy, "replicas": 1}, demo={"replicas": 1, "stages": stages})
                await yard.ready(client)
                await measure(yard, client, options)
        finally:
            await end(yard)


async def measure(yard: Yard, client: AsyncClient, options: argparse.Namespace) -> None:
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu = dict.fromkeys(WAYS, 0.0)
    spent, count, most = 0.0, 0.0, dict[str, int]()
    print(f"{'round':>6}{'auto, s':>9}{'never, s':>10}{'ratio':>8}{'node agent, MiB':>17}")
    await round_of(yard, client, "never", 0, options.at_once)
    async with running(watch_bytes(client, most)):
        for number in range(1, options.rounds + 1):
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                before = cpu_seconds(yard)
                ended = await round_of(yard, client, way, number, options.at_once)
                cpu[way] += cpu_seconds(yard) - before
                assert all(one.reward == 1.0 for one in ended), [one.error for one in ended]
                seconds[way] += [one.timings.run or 0.0 for one in ended]
                spent += sum(one.metrics.get("resume_snapshot_seconds", 0.0) for one in ended)
                count += sum(one.metrics.get("resume_snapshots", 0.0) for one in ended)
            auto, never = (statistics.mean(seconds[way][-options.at_once :]) for way in WAYS)
            print(f"{number:>6}{auto:>9.1f}{never:>10.1f}{auto / never:>8.3f}{peak_mib(yard):>17.0f}", flush=True)
    auto, never = (sum(seconds[way]) for way in WAYS)
    print(f"all: ratio {auto / never:.3f}; snapshots: {count:g}, {spent / auto:.2%} of RUN's seconds")
    each = [f"{cpu[way] / (options.rounds * options.at_once):.2f} ({way})" for way in WAYS]
    print(f"CPU seconds of server and node agent for a rollout: {', '.join(each)}")
    print(f"server, at most: {most.get('turns', 0):,} bytes of turns, {most.get('snapshots', 0):,} of snapshots")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--files", type=int, default=2000)
    asyncio.run(main(parser.parse_args()))
