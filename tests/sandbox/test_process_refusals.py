"""Starts of processes that the kernel refuses because the job has no room for one more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.host.sandbox_account import Account
from rollyard.sandbox.process_refusals import ProcessRefusals
from rollyard.sandbox.sandbox import PROCESSES_SHORT
from tests.sandbox.test_free_memory import lay
from tests.support.memory_cgroup import job_cgroups
from tests.support.ordinary_user import ordinary_user

NOBODY_ELSE = Account(64999, 64999)
"""An account that runs nothing else, because the limit counts all processes of an account."""

COUNTS = """
import os, sys
from rollyard.sandbox.process_refusals import ProcessRefusals
sys.stdin.readline()
counter = ProcessRefusals()
before = counter.count()
try: os.fork()
except BlockingIOError: pass
print(counter.count() - before)
"""

NO_ROOM = """
import asyncio, os, resource, threading
from pathlib import Path
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory

FORK = "import os, time\\ntry: os.fork()\\nexcept BlockingIOError: open('/tmp/refused', 'w').close()"
over = threading.Event()

def threads():
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        if int(fields["Uid"].split()[0]) == os.getuid():
            found += int(fields["Threads"])
    return found

def fill():  # again and again, because other processes of this user may end
    while not over.is_set():
        try:
            threading.Thread(target=over.wait, daemon=True).start()
        except RuntimeError:
            over.wait(0.001)

async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)

async def exists(sandbox, path):
    try:
        await sandbox.read_file(path, 1)
    except FileNotFoundError:
        return False
    return True

async def main():
    limit = threads() + 200
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    async with SandboxFactory(await asyncio.to_thread(find_runtime)) as factory:
        async with await factory.start(SandboxSpec(None, Limits(processes=64))) as sandbox:
            await sandbox.ipython("1", 60)
            assert not sandbox.node_fault and not await exists(sandbox, "/tmp/refused")
            guard = factory._guard
            filling = threading.Thread(target=fill, daemon=True)
            filling.start()
            await until(lambda: guard.take_reports("") or guard.refusals)
            running = asyncio.create_task(sandbox.ipython(
                FORK + "\\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)", 60))
            while not await exists(sandbox, "/tmp/refused"):
                await asyncio.sleep(0.01)
            before = guard.refusals
            await until(lambda: guard.take_reports("") or guard.refusals > before)
            over.set()
            filling.join()
            await until(lambda: threads() < limit)
            await sandbox.write_file("/tmp/go", b"")
            await running
            print(sandbox.node_fault)

asyncio.run(main())
"""


def test_those_of_others_below_the_same_slice_are_not_counted(tmp_path: Path) -> None:
    (own := tmp_path / "cgroup").write_text("0::/slice/job\n")
    lay(tmp_path / "slice" / "job", pids__events="max 3\n", pids__events__local="max 2\n")
    lay(tmp_path / "slice", pids__events="max 9\n", pids__events__local="max 1\n")
    counter = ProcessRefusals(own, tmp_path)
    assert counter.count() == 3
    lay(tmp_path / "slice" / "job", pids__events__local="max 7\n")
    assert counter.count() == 8
    counter.close()


def test_without_such_a_cgroup_there_are_none(tmp_path: Path) -> None:
    (own := tmp_path / "cgroup").write_text("3:cpu:/job\n0::/\n")
    assert ProcessRefusals(own, tmp_path).count() == 0


@pytest.mark.asyncio
async def test_the_kernel_counts_what_it_refuses() -> None:
    async with job_cgroups() as cgroups:
        if "pids" not in cgroups:
            pytest.skip("no cgroup that limits processes can be made here")
        with subprocess.Popen(
            [sys.executable, "-c", COUNTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as job:
            (cgroups["pids"] / "cgroup.procs").write_text(str(job.pid))
            (cgroups["pids"] / "pids.max").write_text("1")
            said, _ = job.communicate("go\n", 60)
        assert said == "1\n"


def test_a_users_limit_of_processes_is_a_fault_of_the_node() -> None:
    """The limit was reached while a cell ran, and is not any more when the cell ends."""
    user = ordinary_user(NOBODY_ELSE)
    told = subprocess.run(
        [user.python, "-c", NO_ROOM], env=user.environment, cwd="/", stdout=subprocess.PIPE, text=True, timeout=120,
        check=True, **user.credentials,
    ).stdout  # fmt: skip
    assert told == f"{PROCESSES_SHORT}\n"
