"""Training on software tasks in short, and the files of the recipe for a cluster."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from examples.swe.repositories import Repository
from rollyard.client.task_report import TaskReport
from rollyard.kinds.swe_task import SweTask
from rollyard.kinds.task import Task
from tests.support.cluster import NewCluster
from tests.support.forked_trainers import ForkedTrainers
from tests.support.small_roots import add_git, busybox_root
from tests.support.yard import ROOT, Yard, end

pytestmark = pytest.mark.slow(60)


def trained(trainers: ForkedTrainers, out: Path, *options: str) -> list[dict[str, Any]]:
    base = busybox_root(out / "base")
    add_git(base)
    trainers.run("examples.swe.train", "--out", out, "--base", base, *options, home=out)
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]


@pytest.mark.long  # it takes 70 s of CPU time; test_grpo.py trains by the same loop
def test_a_step_trains_on_tasks_that_are_checked_before(trainers: ForkedTrainers, tmp_path: Path) -> None:
    shape = ("--steps", "1", "--groups", "1", "--n", "4", "--held-out", "1")
    of_set = ("--repositories", "1", "--held-out-repositories", "1", "--modules", "2")
    steps = trained(trainers, tmp_path, *shape, *of_set)
    assert [step["step"] for step in steps] == [0, 1]
    assert 0 < steps[1]["reward"] < 1
    assert steps[1]["held_out"] is not None
    assert (tmp_path / "weights" / "step1" / "model.safetensors").exists()
    tasks = [Task.model_validate_json(line) for line in (tmp_path / "set" / "tasks.jsonl").read_text().splitlines()]
    report = TaskReport.read(tmp_path / "set" / "report.jsonl")
    assert [found.task for found in report.tasks] == [task.digest for task in tasks]
    assert {found.verdict for found in report.tasks} <= {"sound", "free"}, "the few cases may miss a bug"
    assert {task.image for task in tasks} == {
        f"oci-archive:{file}" for file in (tmp_path / "set" / "archives").glob("*.tar")
    }


def test_each_issue_has_its_own_bug_and_the_tests_of_all_modules() -> None:
    repository = Repository("one", random.Random(0))
    tasks = [Task.model_validate(task).fields_as(SweTask) for task in repository.tasks("built:one")]
    assert len({test for task in tasks for test in task.fail_to_pass}) == len(tasks)
    for task, (module, problem) in zip(tasks, repository.problems.items(), strict=True):
        assert repository.bugs[module].source != problem.source
        assert repository.bugs[module].source in (task.setup or "")
        assert problem.source not in (task.setup or "")
        assert {*task.fail_to_pass, *task.pass_to_pass} == set(tasks[0].fail_to_pass + tasks[0].pass_to_pass)


async def test_slurm_takes_the_pools_of_the_recipe(new_cluster: NewCluster, tmp_path: Path) -> None:
    partitions = ("PartitionName=gpu Nodes=ALL Default=YES", "PartitionName=cpu Nodes=ALL")
    yard = Yard(tmp_path, new_cluster(nodes=1, cpus=64, gpus=8, memory=1_000_000, conf=partitions))
    yard.start()
    out, err = await yard.rollyard("apply", "-f", str(ROOT / "examples" / "swe" / "cluster"), "--dry-run=server")
    assert "inferencepool/coder created (server dry run)" in out
    assert "would submit 15 jobs of 1 node, 16 CPUs, 2 GPUs, 200G of memory for up to 04:00:00 in partition gpu" in out
    assert "rolloutpool/swe created (server dry run)" in out
    assert "would submit 4 jobs of 1 node, 64 CPUs, 0 GPUs, 400G of memory for up to 04:00:00 in partition cpu" in out
    (line,) = err.splitlines()  # the nodes of a real cluster have the model's folder, and this machine has not
    assert line.startswith("Warning: this machine has no /shared/models/")
    assert await yard.jobs() == []
    await end(yard)


@pytest.mark.long
@pytest.mark.slow(3000)
def test_the_held_out_reward_rises(trainers: ForkedTrainers, tmp_path: Path) -> None:
    steps = trained(trainers, tmp_path, "--minutes", "60")
    held_out = [step["held_out"] for step in steps if step["held_out"] is not None]
    assert sum(held_out[-2:]) / 2 > held_out[0] + 0.05, held_out
