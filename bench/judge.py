"""Cost of the judge of a case, beside the bare start of the same program, which is in C and prints a number.

    python -m bench.judge [--cases 400] [--times 5]

The baseline is bash, which starts the program in a loop in the same sandbox, with a file as its input. Ours gives it its input
through a pipe, reads its output, limits it, ends its processes and compares. CPU time is that of the node agent's process, of
the runner in the sandbox and of the program itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path

from rollyard.core.errors import SandboxStartFailed
from rollyard.kinds.code_task import CodeTask
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox_agent.programs import RUNNER
from rollyard.tasks.code.languages import BUILD, Commands
from rollyard.tasks.code.program_cases import comparison, solution_start
from rollyard.tasks.code.program_runs import program_runner
from rollyard.tasks.scoring.checker_pool import CheckerPool

LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20, processes=64)
PROGRAM = '#include <stdio.h>\nint main() { int n; return scanf("%d", &n) != 1 || printf("%d\\n", n * n) < 2; }\n'
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(stat: str) -> float:
    """Return the CPU time of a process and of its children that have ended. `stat`: its file in /proc."""
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / TICKS


def runner_cpu() -> float:
    """Return the CPU time of the one runner that this process has started."""
    found = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if RUNNER.encode() in _read(path)]
    (own,) = (process for process in found if _is_ours(process))
    return cpu_seconds(_read(own / "stat").decode())


def _is_ours(process: Path) -> bool:
    while (above := _read(process / "stat").rpartition(b")")[2].split()[1:2]) and int(above[0]):
        if int(above[0]) == os.getpid():
            return True
        process = Path("/proc", above[0].decode())
    return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def bare(sandbox: Sandbox, cases: int) -> tuple[float, float]:
    """Return wall time and CPU time of a case in ms."""
    loop = f"for ((n = 0; n < {cases}; n++)); do {BUILD}/program <{BUILD}/input >/dev/null; done"
    script = f"cat /proc/$$/stat; {loop}; cat /proc/$$/stat"
    await sandbox.bash(loop, 60)
    began = time.perf_counter()
    output = (await sandbox.bash(script, 600)).output
    wall = time.perf_counter() - began
    before, after = map(cpu_seconds, output.strip().splitlines())
    return wall / cases * 1000, (after - before) / cases * 1000


async def ours(sandbox: Sandbox, cases: int) -> tuple[float, float]:
    code = CodeTask.model_validate(
        {"problem": "?", "solution": "/workspace/s.c", "language": "c", "cases": [{"input": "3\n", "output": "9\n"}]}
    )
    judge = comparison(code, CheckerPool("rollyard.tasks.scoring.output_comparison", ()))
    start = solution_start(code, Commands([f"{BUILD}/program"]), 600.0)
    async with program_runner(sandbox) as runner:
        for _ in range(10):
            await judge(runner, start, code.cases[0])
        used, began = time.process_time() + runner_cpu(), time.perf_counter()
        for _ in range(cases):
            assert (await judge(runner, start, code.cases[0])).why is None
        wall = time.perf_counter() - began
        return wall / cases * 1000, (time.process_time() + runner_cpu() - used) / cases * 1000


async def compare(factory: SandboxFactory, cases: int, times: int) -> None:
    async with await factory.start(SandboxSpec(None, LIMITS)) as sandbox:
        await sandbox.write_file(f"{BUILD}/s.c", PROGRAM.encode())
        await sandbox.write_file(f"{BUILD}/input", b"3\n")
        built = await sandbox.bash(f"gcc -O2 -o {BUILD}/program {BUILD}/s.c", 60)
        assert built.exit_code == 0, built.output
        runs = []
        for _ in range(times):
            runs.append((await bare(sandbox, cases), await ours(sandbox, cases)))
    for place, what in enumerate(("wall time", "CPU time")):
        mine, base = ([run[which][place] for run in runs] for which in (1, 0))
        ratios = sorted(a / b for a, b in zip(mine, base, strict=True))
        print(
            f"    {what:<12}{statistics.median(mine):>8.2f}{statistics.median(base):>10.2f}{statistics.median(ratios):>8.2f}"
            f"  ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--times", type=int, default=5)
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of a case in ms")
    names: tuple[RuntimeName, ...] = ("bubblewrap", "apptainer")
    for name in names:
        try:
            runtime = find_runtime(name)
        except SandboxStartFailed as error:
            print(f"left out: {name}: {error}")
            continue
        print(f"\n{name:<16}{'ours':>8}{'bare':>10}{'ratio':>8}")
        async with SandboxFactory(runtime) as factory:
            await compare(factory, chosen.cases, chosen.times)


if __name__ == "__main__":
    asyncio.run(main())
