"""Cost of a tool call, from this process into a sandbox and back, beside the alternatives.

    python bench/tools.py [--runtime auto] [--calls 300]

Ours: `echo hi` in the resident bash, `1+1` in the resident IPython, of one sandbox. Baselines, from the same run: a fresh
sandbox of each runtime found here for every command, and an IPython kernel through jupyter_client over ZMQ, without sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollyard.core.errors import SandboxStartFailed
from rollyard.core.node_cache import node_cache
from rollyard.core.sandbox_account import sandbox_account
from rollyard.node.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.node.sandbox.bundled_python import own_python
from rollyard.node.sandbox.find_runtime import LAUNCH_ENVIRONMENT, RuntimeName, find_runtime
from rollyard.node.sandbox.images import default_root
from rollyard.node.sandbox.sandbox import SandboxFactory

LIMITS = Limits(cpus=os.cpu_count() or 1, memory_bytes=2 << 30, disk_bytes=256 << 20)
WARM_UP = 20
FRESH_CALLS = 50
"""Number of calls with a fresh sandbox, which take tens of milliseconds each; enough for a stable median."""


@dataclass(frozen=True)
class Figures:
    name: str
    calls: int
    median_ms: float
    p90_ms: float

    @classmethod
    def of(cls, name: str, seconds: list[float]) -> Figures:
        ordered = sorted(seconds)
        p90 = ordered[int(0.9 * (len(ordered) - 1))]
        return cls(name, len(ordered), statistics.median(ordered) * 1000, p90 * 1000)


async def timed(call: Callable[[], Awaitable[None]], calls: int) -> list[float]:
    for _ in range(min(WARM_UP, calls)):
        await call()
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - started)
    return seconds


async def ours(runtime: Runtime, calls: int) -> tuple[Figures, Figures]:
    async with SandboxFactory(runtime) as sandboxes, await sandboxes.start(SandboxSpec(None, LIMITS)) as sandbox:

        async def bash() -> None:
            assert (await sandbox.bash("echo hi", 10)).output == "hi\n"

        async def ipython() -> None:
            assert (await sandbox.ipython("1+1", 10)).output == "2\n"

        await sandbox.prepare(["bash", "ipython"])
        return (
            Figures.of(f"resident bash in {runtime.name}", await timed(bash, calls)),
            Figures.of(f"resident IPython in {runtime.name}", await timed(ipython, calls)),
        )


async def fresh(runtime: Runtime) -> Figures:
    """Measure a new sandbox for each `bash -c 'echo hi'`."""
    cache = node_cache()
    argv = runtime.command(default_root(cache), LIMITS, own_python(cache), ["/usr/bin/bash", "-c", "echo hi"])
    credentials = sandbox_account().credentials

    async def call() -> None:
        done = subprocess.run(argv, env=LAUNCH_ENVIRONMENT, cwd="/", capture_output=True, check=True, **credentials)  # noqa: ASYNC221 - nothing else runs, and the loop would add to it
        assert done.stdout == b"hi\n"

    return Figures.of(f"fresh {runtime.name} a command", await timed(call, FRESH_CALLS))


async def jupyter(calls: int) -> Figures:
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = manager.client()
    client.start_channels()
    outputs: list[str] = []

    def hear(message: dict[str, dict[str, dict[str, str]]]) -> None:
        if "data" in message["content"]:
            outputs.append(message["content"]["data"]["text/plain"])

    async def call() -> None:
        outputs.clear()
        client.execute_interactive("1+1", timeout=10, output_hook=hear)
        assert outputs == ["2"]

    try:
        client.wait_for_ready(timeout=60)
        return Figures.of("jupyter_client over ZMQ, no sandbox", await timed(call, calls))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def report(title: str, own: Figures, baselines: list[Figures]) -> None:
    print(f"\n{title}\n  {'':<42}{'calls':>6}{'median ms':>12}{'p90 ms':>10}{'ratio':>9}")
    for figures in (own, *baselines):
        ratio = "" if figures is own else f"{figures.median_ms / own.median_ms:8.1f}x"
        print(f"  {figures.name:<42}{figures.calls:>6}{figures.median_ms:>12.2f}{figures.p90_ms:>10.2f}{ratio:>9}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=["auto", "apptainer", "singularity", "bubblewrap"], default="auto")
    parser.add_argument("--calls", type=int, default=300)
    chosen = parser.parse_args()
    runtime = find_runtime(chosen.runtime)
    bash, ipython = await ours(runtime, chosen.calls)

    baselines, left_out = [], []
    names: tuple[RuntimeName, ...] = ("bubblewrap", "apptainer")
    for name in names:
        try:
            baselines.append(await fresh(find_runtime(name)))
        except SandboxStartFailed as error:
            left_out.append(f"{name}: {error}")
    report("bash: echo hi", bash, baselines)

    if importlib.util.find_spec("ipykernel"):
        report("IPython: 1+1", ipython, [await jupyter(chosen.calls)])
    else:
        report("IPython: 1+1", ipython, [])
        left_out.append("jupyter_client over ZMQ: it needs the Python package ipykernel; pip install ipykernel")
    for missing in left_out:
        print(f"\nleft out: {missing}")


if __name__ == "__main__":
    asyncio.run(main())
