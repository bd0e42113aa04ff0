"""Sandboxes within their limits that together use up the job's memory: the memory guard acts before the kernel."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from rollyard.sandbox.base import Runtime
from tests.support.memory_cgroup import kernel_kills, memory_cgroup, remove

MIB = 1 << 20
JOB = """
import asyncio, signal, sys
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory

HOG = "python3 -c 'import time; kept = [time.sleep(0.02) or bytearray(5 << 20) for n in range({})]; time.sleep(600)'"

async def main():
    spec = SandboxSpec(None, Limits(1, 1 << 30, 64 << 20))
    async with SandboxFactory(find_runtime(sys.argv[1])) as sandboxes:
        async with await sandboxes.start(spec) as neighbour, await sandboxes.start(spec) as greedy:
            await neighbour.ipython("kept = bytearray(200 << 20)", 60)
            if sys.argv[2:]:
                sandboxes._guard._process.send_signal(signal.SIGSTOP)
            print((await greedy.bash(HOG.format(140), 60)).notes)
            sandboxes._guard._process.send_signal(signal.SIGCONT)
            print((await neighbour.ipython("len(kept) >> 20", 60)).output, (await greedy.bash("echo works", 60)).output)
            print(bool(greedy.node_fault), bool(neighbour.node_fault))

sys.stdin.readline()
asyncio.run(main())
"""


async def run(*words: str) -> tuple[str, int]:
    """Run the job; return its output, and the number of processes that the kernel has ended."""
    with memory_cgroup(896 * MIB) as cgroup:
        argv = [sys.executable, "-c", JOB, *words]
        root = Path(__file__).parents[2]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as job:
            (cgroup / "cgroup.procs").write_text(str(job.pid))
            said, _ = await asyncio.to_thread(job.communicate, "go\n", 120)
        kills = kernel_kills(cgroup)
        await remove(cgroup)
    return said, kills


async def test_the_sandbox_with_the_most_memory_gives_way(runtime: Runtime) -> None:
    said, kills = await run(runtime.name)
    assert kills == 0
    assert "the allocation had only " in said, said
    assert "of memory left, and this sandbox used the most: " in said
    assert said.split()[-4:] == ["200", "works", "True", "False"], "only this one was hurt by the lack of memory"


async def test_a_result_says_that_the_kernel_was_faster() -> None:
    said, kills = await run("bubblewrap", "the guard stands still")
    assert kills > 0
    assert f"the memory of the allocation ran out, and the kernel ended {kills} of the processes" in said, said
    assert said.split()[-4:] == ["200", "works", "True", "True"], "each of them may have been hurt"
