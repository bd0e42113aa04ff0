"""The batch script's text."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.slurm.base import BatchScript
from rollyard.slurm.batch_script import batch_script, directives

FULL = AllocationTemplate.model_validate(
    {
        "partition": "gpu,gpu2", "account": "rl", "qos": "high", "nodes": 2, "gpusPerNode": 4, "gpuType": "a100",
        "gres": "shard:2", "cpusPerTask": 16, "memory": "128GiB", "timeLimit": "1-08:00:00", "constraint": "a100&nvlink",
        "nodelist": ["n3"], "exclude": ["n1", "n[20-22]"], "reservation": "res", "licenses": "matlab:1", "exclusive": True,
        "nice": 10, "extraDirectives": {"begin": "now+1hour"}, "env": {"A": "it's $HOME"}, "setup": "module load cuda",
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
#SBATCH --gpus-per-node=a100:4
#SBATCH --gres=shard:2
#SBATCH --cpus-per-task=16
#SBATCH --mem=128G
#SBATCH --time=1-08:00:00
#SBATCH --constraint=a100&nvlink
#SBATCH --nodelist=n3
#SBATCH --exclude=n1,n[20-22]
#SBATCH --reservation=res
#SBATCH --licenses=matlab:1
#SBATCH --exclusive
#SBATCH --nice=10
#SBATCH --begin=now+1hour
#SBATCH --job-name=rollyard-p-0
#SBATCH --comment=rollyard:s:u
#SBATCH --output=/d/job.log
#SBATCH --open-mode=append
#SBATCH --no-requeue
:  # sbatch looks for directives up to the first command: none in `setup` may replace ours
export ROLLYARD_ALLOCATION=/d
export A='it'"'"'s $HOME'
module load cuda
exec '/opt/a b/python' -m x
"""
    )


def test_bash_can_read_it() -> None:
    subprocess.run(["bash", "-n"], input=script(FULL).text, text=True, check=True)


def test_a_path_that_does_not_fit_on_its_line_is_refused() -> None:
    with pytest.raises(Invalid, match="cannot stand on one line of a batch script; choose another path"):
        batch_script(
            AllocationTemplate(), name="n", comment="c", log_path="/a\nb/job.log", directory="/a\nb", command=["x"]
        )


def test_values_are_what_the_shell_and_sbatch_read() -> None:
    awkward = 'it\'s $(id) "`x`"\\ \n end'
    template = AllocationTemplate(env={"A": awkward}, constraint='a "b" \\c', extra_directives={"spread-job": ""})
    text = script(template).text.replace("exec '/opt/a b/python' -m x", 'printf %s "$A"')
    assert subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True).stdout == awkward
    assert directives(text)["constraint"] == 'a "b" \\c'
    assert "#SBATCH --spread-job\n" in text


def test_setup_cannot_replace_what_a_job_is_known_by() -> None:
    found = directives(script(AllocationTemplate(setup="#SBATCH --comment=other\n#SBATCH --job-name=other")).text)
    assert (found["comment"], found["job-name"]) == ("rollyard:s:u", "rollyard-p-0")


def test_a_percent_sign_in_the_path_of_the_log_stays_one() -> None:
    made = batch_script(
        AllocationTemplate(), name="n", comment="c", log_path="/d/50%j/job.log", directory="/d", command=["true"]
    )
    assert directives(made.text)["output"] == "/d/50%%j/job.log"


@pytest.mark.parametrize(("tasks", "uids", "task"), [(None, ["u-0"], "0"), (3, ["u-0", "u-1", "u-2"], "1")])
def test_each_task_knows_the_uid_of_its_allocation(
    tasks: int | None, uids: list[str], task: str, tmp_path: Path
) -> None:
    (tmp_path / task).mkdir()
    made = batch_script(
        AllocationTemplate(), name="n", comment="c", log_path="/d/job.log", directory=str(tmp_path), tasks=tasks,
        uids=uids, command=["printenv", "ROLLYARD_ALLOCATION_UID"],
    )  # fmt: skip
    env = {**os.environ, "SLURM_ARRAY_TASK_ID": task}
    assert subprocess.run(["bash", "-c", made.text], env=env, capture_output=True, text=True).stdout == f"u-{task}\n"


def test_the_example_in_the_documentation_is_such_a_script() -> None:
    assert Path("deploy/slurm/batch-example.sh").read_text() == script(FULL).text
