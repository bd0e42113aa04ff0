"""Stages of a real SWE instance, beside the bare commands that do the same work in the same image.

    python -m bench.tasks [--times 5]

The instances are those of tests/support/swe_instances. INIT starts a sandbox and scrubs the history; RUN applies the right
change and captures it; EVAL starts a fresh sandbox, puts the tests and the change in place, and runs the tests. The baseline
does this by git and the test program, as one bash script in a sandbox that has been started before. So the start counts for
ours, and not for the baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator

from rollyard.core.errors import SandboxStartFailed
from rollyard.kinds.task import Task
from rollyard.kinds.values.image_reference import parse_image
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.base import Evaluation
from rollyard.tasks.rows.dataset_row import Converted
from rollyard.tasks.swe.handler import SweHandler
from rollyard.tasks.swe.rows.conversion import convert
from rollyard.tasks.swe.rows.released_packages import NoPackages
from tests.support.swe_instances.instance import Instance, instance
from tests.support.swe_instances.pairs import MEASURED

LIMITS = Limits(cpus=1, memory_bytes=2 << 30, disk_bytes=512 << 20, processes=256)
SCRUB = """\
git tag -d $(git tag) >/dev/null
git for-each-ref --format='%(refname)' refs/remotes refs/stash | xargs -r -n 1 git update-ref -d
git reflog expire --expire=now --all; git gc --quiet --prune=now
"""
STAGES = ("INIT", "RUN", "EVAL")


async def bare_seconds(factory: SandboxFactory, one: Instance) -> dict[str, float]:
    change = one.made.apply_patch
    capture = f"git add -A && git diff --cached --binary {one.made.base} >/tmp/change"
    scripts = {"INIT": f"{one.enter}\n{SCRUB}", "RUN": f"{one.enter}\n{change}{capture}\n", "EVAL": one.script(change)}
    found = {}
    for stage, script in scripts.items():
        async with await factory.start(SandboxSpec(parse_image(str(one.root)), LIMITS)) as sandbox:
            await sandbox.write_file("/tmp/bare.sh", script.encode())
            started = time.perf_counter()
            await sandbox.bash("bash /tmp/bare.sh >/tmp/log 2>&1", 600)
            found[stage] = time.perf_counter() - started
            output = (await sandbox.read_file("/tmp/log", 16 << 20)).decode(errors="replace")
        assert stage != "EVAL" or one.passed(output), output[-2000:]
    return found


async def our_seconds(factory: SandboxFactory, one: Instance, task: Task, handler: SweHandler) -> dict[str, float]:
    spec = SandboxSpec(parse_image(str(one.root)), LIMITS)

    @contextlib.asynccontextmanager
    async def fresh() -> AsyncIterator[Sandbox]:
        async with await factory.start(spec) as sandbox:
            yield sandbox

    times = [time.perf_counter()]
    async with fresh() as sandbox:
        await handler.init(task, sandbox)
        times.append(time.perf_counter())
        done = await sandbox.bash(f"cd {task.fields['repository']}\n{one.made.apply_patch}", 60)
        assert done.exit_code == 0, done.output
        artifact = await handler.collect(task, sandbox)
        times.append(time.perf_counter())
    times.append(time.perf_counter())
    async with fresh() as sandbox:
        score = await handler.evaluate(task, Evaluation(artifact, [], 600.0, sandbox, fresh))
        times.append(time.perf_counter())
    assert score.reward == 1.0, score
    return {"INIT": times[1] - times[0], "RUN": times[2] - times[1], "EVAL": times[4] - times[3]}


def line(name: str, ours: float, bare: float) -> None:
    print(
        f"    {name:<26}{ours * 1000:>9.0f}{bare * 1000:>10.0f}{ours / bare:>8.2f}{(ours - bare) * 1000:>11.0f}",
        flush=True,
    )


async def compare(factory: SandboxFactory, one: Instance, times: int) -> None:
    converted = convert(one.row, NoPackages())
    assert isinstance(converted, Converted), converted
    task, handler = Task.model_validate(converted.task), SweHandler()
    ours, bare = [], []
    for _ in range(times + 1):  # the first one warms both
        ours.append(await our_seconds(factory, one, task, handler))
        bare.append(await bare_seconds(factory, one))
    await handler.close()
    print(f"  {one.pair.id}")
    for stage in STAGES:
        line(stage, *(statistics.median(run[stage] for run in runs[1:]) for runs in (ours, bare)))
    line("together", *(statistics.median(sum(run.values()) for run in runs[1:]) for runs in (ours, bare)))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    chosen = parser.parse_args()
    instances = [await asyncio.to_thread(instance, pair) for pair in MEASURED]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians")
    names: tuple[RuntimeName, ...] = ("bubblewrap", "apptainer")
    for name in names:
        try:
            runtime = find_runtime(name)
        except SandboxStartFailed as error:
            print(f"left out: {name}: {error}")
            continue
        print(f"\n{name:<30}{'ours ms':>9}{'bare ms':>10}{'ratio':>8}{'above, ms':>11}")
        async with SandboxFactory(runtime) as factory:
            for one in instances:
                await compare(factory, one, chosen.times)


if __name__ == "__main__":
    asyncio.run(main())
