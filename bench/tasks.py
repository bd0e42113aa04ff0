"""Stages of a real SWE instance, beside the bare commands that do the same work in the same image.

    python -m bench.tasks [--times 5] [--instance sqlparse] [--runtime bubblewrap] [--control early|late]

The instances are those of tests/support/swe_instances. INIT starts a sandbox and scrubs the history; RUN applies the right
change and captures it; EVAL starts a fresh sandbox, puts the tests and the change in place, and runs the tests. The baseline
does this by git and the test program, as one bash script in a sandbox that has been started before. So the start counts for
ours, and not for the baseline. CPU seconds are those of this process and of all processes that it has started.

The change of sqlparse has words that ask for a control run. `--control early` runs it at the same time as the tests, `late`
after them. By default the handler decides: early if a core is idle.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

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
from rollyard.tasks.swe.early_run import core_is_idle
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
IDLE: dict[str, Callable[[], bool]] = {"auto": core_is_idle, "early": lambda: True, "late": lambda: False}
Times = dict[str, tuple[float, float]]
"""Stage -> wall seconds and CPU seconds."""


class Clock:
    """Wall and CPU time since the last reading."""

    def __init__(self) -> None:
        self._last = self._now()

    def lap(self) -> tuple[float, float]:
        before, self._last = self._last, self._now()
        return self._last[0] - before[0], self._last[1] - before[1]

    @staticmethod
    def _now() -> tuple[float, float]:
        wall, parents, ticks = time.perf_counter(), {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                words = path.read_text().rpartition(")")[2].split()
                process = int(path.parent.name)
                parents[process], ticks[process] = int(words[1]), sum(map(int, words[11:15]))
        ours = {os.getpid()}
        while more := {process for process, parent in parents.items() if parent in ours} - ours:
            ours |= more
        return wall, sum(ticks[process] for process in ours) / os.sysconf("SC_CLK_TCK")


async def bare_seconds(factory: SandboxFactory, one: Instance) -> Times:
    change = one.made.apply_patch
    capture = f"git add -A && git diff --cached --binary {one.made.base} >/tmp/change"
    scripts = {"INIT": f"{one.enter}\n{SCRUB}", "RUN": f"{one.enter}\n{change}{capture}\n", "EVAL": one.script(change)}
    found = {}
    for stage, script in scripts.items():
        async with await factory.start(SandboxSpec(parse_image(str(one.root)), LIMITS)) as sandbox:
            await sandbox.write_file("/tmp/bare.sh", script.encode())
            clock = Clock()
            await sandbox.bash("bash /tmp/bare.sh >/tmp/log 2>&1", 600)
            found[stage] = clock.lap()
            output = (await sandbox.read_file("/tmp/log", 16 << 20)).decode(errors="replace")
        assert stage != "EVAL" or one.passed(output), output[-2000:]
    return found


async def our_seconds(factory: SandboxFactory, one: Instance, task: Task, handler: SweHandler) -> Times:
    spec = SandboxSpec(parse_image(str(one.root)), LIMITS)

    @contextlib.asynccontextmanager
    async def fresh() -> AsyncIterator[Sandbox]:
        async with await factory.start(spec) as sandbox:
            yield sandbox

    clock = Clock()
    async with fresh() as sandbox:
        await handler.init(task, sandbox)
        init = clock.lap()
        done = await sandbox.bash(f"cd {task.fields['repository']}\n{one.made.apply_patch}", 60)
        assert done.exit_code == 0, done.output
        artifact = await handler.collect(task, sandbox)
        run = clock.lap()
    clock = Clock()
    async with fresh() as sandbox:
        score = await handler.evaluate(task, Evaluation(artifact, [], 600.0, sandbox, fresh))
    assert score.reward == 1.0, score
    return {"INIT": init, "RUN": run, "EVAL": clock.lap()}


def line(name: str, ours: Sequence[tuple[float, float]], bare: Sequence[tuple[float, float]]) -> None:
    cells = []
    for of_ours, of_bare in zip(zip(*ours, strict=True), zip(*bare, strict=True), strict=True):
        mine, its = statistics.median(of_ours), statistics.median(of_bare)
        cells.append(f"{mine * 1000:>9.0f}{its * 1000:>9.0f}{(mine - its) * 1000:>9.0f}")
    print(f"    {name:<20}{'   '.join(cells)}", flush=True)


async def compare(factory: SandboxFactory, one: Instance, chosen: argparse.Namespace) -> None:
    converted = convert(one.row, NoPackages())
    assert isinstance(converted, Converted), converted
    task, handler = Task.model_validate(converted.task), SweHandler(IDLE[chosen.control])
    ours, bare = [], []
    for _ in range(chosen.times + 1):  # the first one warms both
        ours.append(await our_seconds(factory, one, task, handler))
        bare.append(await bare_seconds(factory, one))
    await handler.close()
    print(f"  {one.pair.id}")
    for stage in STAGES:
        line(stage, *([run[stage] for run in runs[1:]] for runs in (ours, bare)))
    sums = ([tuple(map(sum, zip(*run.values(), strict=True))) for run in runs[1:]] for runs in (ours, bare))
    line("together", *sums)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--instance", default="", help="a part of the instance's name")
    parser.add_argument("--runtime", choices=("bubblewrap", "apptainer"))
    parser.add_argument("--control", choices=IDLE, default="auto")
    chosen = parser.parse_args()
    instances = [await asyncio.to_thread(instance, pair) for pair in MEASURED if chosen.instance in pair.id]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians")
    names: tuple[RuntimeName, ...] = (chosen.runtime,) if chosen.runtime else ("bubblewrap", "apptainer")
    for name in names:
        try:
            runtime = find_runtime(name)
        except SandboxStartFailed as error:
            print(f"left out: {name}: {error}")
            continue
        head = f"{'ours':>9}{'bare':>9}{'above':>9}"
        print(f"\n{name:<12}ms of wall: {head}   of CPU: {head.removeprefix(' ' * 5)}")
        async with SandboxFactory(runtime) as factory:
            for one in instances:
                await compare(factory, one, chosen)


if __name__ == "__main__":
    asyncio.run(main())
