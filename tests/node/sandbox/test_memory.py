"""Memory of a whole sandbox: more processes or files than the limit allows, and a result that says so."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rollyard.node.sandbox.base import SandboxSpec
from rollyard.node.sandbox.sandbox import Sandbox, SandboxFactory
from tests.support.host_processes import host_processes

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOG = "import time; hog = bytearray(400 << 20); time.sleep(600)"
PROCESSES = f"for i in 1 2 3 4; do python3 -c '{HOG}' & done; wait -n"
MEMORY_FILES = """python3 -c '
import os, time
files = [os.memfd_create("hog") for i in range(26)]
for file in files: os.write(file, bytes(50 << 20))
time.sleep(600)'"""
SHARED = """python3 -c '
import mmap, os, time
for i in range(4):
    hog = mmap.mmap(-1, 400 << 20)
    if os.fork():
        hog.close()
    else:
        hog.write(bytes(400 << 20))
        time.sleep(600)
os.wait()'"""


@pytest.mark.parametrize(
    "command", [PROCESSES, MEMORY_FILES, SHARED], ids=["processes", "memory files", "shared memory"]
)
async def test_more_memory_than_the_sandbox_may_have(sandbox: Sandbox, command: str) -> None:
    assert (await sandbox.bash("here=1", 60)).exit_code == 0
    result = await sandbox.bash(command, 600)
    assert [note for note in result.notes if "of memory, and its limit is 1.00 GiB; ended: python3" in note], result
    assert (await sandbox.bash("echo $here; jobs -p | xargs -r kill -9", 60)).output.startswith("1\n"), "bash lives on"


async def test_a_neighbour_keeps_its_processes_and_the_next_guard_goes_on(
    sandboxes: SandboxFactory, spec: SandboxSpec, sandbox: Sandbox
) -> None:
    async with await sandboxes.start(spec) as neighbour:
        assert (await neighbour.ipython("kept = bytearray(300 << 20)", 60)).output == ""
        own = [process.pid for process in host_processes() if process.parent == os.getpid()]
        (guard,) = (pid for pid in own if b"rollyard.node.memory_guard" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(guard, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, guard, os.WEXITED | os.WNOWAIT)
        assert (await sandbox.bash("true", 60)).exit_code == 0
        assert (await sandbox.bash(PROCESSES, 600)).notes
        result = await neighbour.ipython("len(kept)", 60)
        assert result.output == f"{300 << 20}\n"
        assert not result.notes
