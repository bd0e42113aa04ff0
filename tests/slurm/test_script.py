"""The batch script's text."""

from __future__ import annotations

import subprocess

import pytest

from rollyard.errors import Invalid
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.slurm.base import BatchScript
from rollyard.slurm.script import batch_script

FULL = AllocationTemplate.model_validate(
    {
        "partition": "gpu,gpu2", "account": "rl", "qos": "high", "nodes": 2, "gpusPerNode": 4, "cpusPerTask": 16,
        "memory": "128G", "timeLimit": "1-08:00:00", "constraint": "a100&nvlink", "exclude": ["n1", "n2"],
        "reservation": "res", "extraDirectives": {"licenses": "matlab:1"}, "env": {"A": "it's $HOME"},
        "setup": "module load cuda",
    }
)  # fmt: skip


def script(template: AllocationTemplate, name: str = "rollyard-p-0") -> BatchScript:
    command = ["/opt/a b/python", "-m", "x"]
    return batch_script(
        template, name=name, comment="rollyard:s:u", log_path="/d/job.log", directory="/d", command=command
    )


def test_every_field_of_the_template_is_in_the_script() -> None:
    assert (
        script(FULL).text
        == """#!/bin/bash
#SBATCH --partition=gpu,gpu2
#SBATCH --account=rl
#SBATCH --qos=high
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=128G
#SBATCH --time=1-08:00:00
#SBATCH --constraint=a100&nvlink
#SBATCH --exclude=n1,n2
#SBATCH --reservation=res
#SBATCH --licenses=matlab:1
#SBATCH --job-name=rollyard-p-0
#SBATCH --comment=rollyard:s:u
#SBATCH --output=/d/job.log
#SBATCH --open-mode=append
#SBATCH --no-requeue

export A='it'"'"'s $HOME'
module load cuda
exec '/opt/a b/python' -m x
"""
    )


def test_bash_can_read_it() -> None:
    subprocess.run(["bash", "-n"], input=script(FULL).text, text=True, check=True)


def test_a_value_cannot_smuggle_in_a_directive() -> None:
    with pytest.raises(Invalid, match="one line"):
        script(AllocationTemplate(constraint="a\n#SBATCH --uid=0"))
    with pytest.raises(Invalid, match="long option"):
        script(AllocationTemplate(extra_directives={"x y": "1"}))
