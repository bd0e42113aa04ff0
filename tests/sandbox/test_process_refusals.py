"""Starts of processes that the kernel refuses because the job has no room for one more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.sandbox.process_refusals import ProcessRefusals
from tests.sandbox.test_free_memory import lay
from tests.support.memory_cgroup import job_cgroups

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
