"""Probes of this machine that need no machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.doctor.this_machine import memory_limit


@pytest.mark.parametrize(
    ("own", "root", "file"),
    [("0::", "", "memory.max"), ("5:memory:", "memory", "memory.limit_in_bytes")],
    ids=["version 2", "version 1"],
)
def test_the_limit_of_a_job_above_the_own_cgroup_counts(tmp_path: Path, own: str, root: str, file: str) -> None:
    """Slurm sets the limit on the job or on the step, and the processes run in a cgroup below it."""
    limits = {"slurm": "max", "slurm/job_1": "4096", "slurm/job_1/step_0": "8192", "slurm/job_1/step_0/task_0": "max"}
    for path, limit in limits.items():
        (tmp_path / root / path).mkdir(parents=True)
        (tmp_path / root / path / file).write_text(f"{limit}\n")
    assert memory_limit(f"9:name=systemd:/\n{own}/slurm/job_1/step_0/task_0", tmp_path) == 4096
    assert memory_limit(f"{own}/slurm", tmp_path) is None
    assert memory_limit(f"{own}/elsewhere/of/a/container", tmp_path) is None
