"""TRL's two trainers, as released, on a real pool: rewards, exact versions, and a failed rollout without a reward."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.client.advantages import grpo
from rollyard.kinds.rollout import Status
from tests.support.compatibility import Compatibility, installed
from tests.support.forked_trainers import ForkedTrainers
from tests.support.live_weights import current_version, pool_of, versions
from tests.support.yard import MODEL, Yard, end
from tests.trainers.conftest import flaky_yard

pytestmark = [pytest.mark.slow(190), pytest.mark.asyncio(loop_scope="module")]
COLUMNS = ("prompts", "rollout_id", "rollout_reward", "prompt_ids", "completion_ids", "env_mask", "logprobs")


DOUBTED = (
    (25, 90), (8, 22), (11, 19), (85, 69), (34, 4), (48, 55), (58, 18), (71, 88), (72, 55), (81, 34), (95, 29), (15, 77),
)  # fmt: skip
"""Numbers whose product the policy finds in some rollouts, asked for in these words; most others always or never."""


def write_tasks(folder: Path, count: int, failing: Collection[int]) -> Path:
    """Write tasks that the policy solves now and then. One rollout of each failing task will fail."""
    lines = []
    for i in range(count):
        a, b = DOUBTED[i % len(DOUBTED)]
        task = {"kind": "flaky", "problem": f"Please tell me the value of {a} * {b}", "answer": str(a * b)}
        marker = folder / f"fails-{i}"
        if i in failing:
            marker.touch()
        lines.append(json.dumps({**task, "fails_while": str(marker)}))
    file = folder / "tasks.jsonl"
    file.write_text("\n".join(lines))
    return file


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    """A yard whose pool knows the task kind `flaky`. Each training continues with the weights of the one before."""
    yard = flaky_yard(tmp_path_factory.mktemp("yard"))
    yard.start()
    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
        await yard.ready(client)
        yield yard, client
    await end(yard)


async def next_versions(client: AsyncClient) -> list[str]:
    """Return the versions that a training of two steps will push: before the first step, and after each."""
    served = [v.version for v in (await pool_of(client)).status.weights.history]
    last = max((int(found[1]) for v in served if (found := re.fullmatch(r"step(\d+)", v))), default=0)
    return [f"step{last + n}" for n in range(1, 4)]


async def trained(
    yard: Yard, trainers: ForkedTrainers, trainer: str, tasks: Path, *, processes: int = 1
) -> list[list[dict[str, Any]]]:
    """Run the trainer in processes of its own; return what each recorded."""
    folder = tasks.parent
    words = ["tests.support.trl_runs", trainer, "--kubeconfig", yard.data / "admin.kubeconfig", "--model", MODEL]
    words += ["--folder", folder, "--tasks", tasks]
    await asyncio.to_thread(trainers.run, *words, home=folder, processes=processes)
    files = [folder / f"{trainer}-{rank}.jsonl" for rank in range(processes)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
async def test_the_trainer_uses_the_weights_of_each_step_and_gives_a_failed_rollout_no_reward(
    served: tuple[Yard, AsyncClient],
    trainers: ForkedTrainers,
    tmp_path: Path,
    processes: int,
    compatibility: Compatibility,
) -> None:
    yard, client = served
    one, two, three = await next_versions(client)
    tasks = write_tasks(tmp_path, 4, failing=[1])
    records = await trained(yard, trainers, "grpo", tasks, processes=processes)
    for *mine, last in records:
        assert [(c["step"], c["version"]) for c in mine] == [(0, one), (1, two)]
        assert last["version"] == await current_version(client) == three
    end = records[0][-1]
    calls = [call for *mine, _ in records for call in mine]
    failed = 0
    for call in calls:
        names = []
        for prompt, id, reward, before, after, mask, logprobs in zip(*(call[c] for c in COLUMNS), strict=True):
            _, trajectory = await client.rollout(id)
            assert trajectory is not None
            assert trajectory.task.model_dump() == json.loads(prompt), "a sample belongs to its prompt"
            compatibility.same("rewards", reward, trajectory.reward)
            names.append(trajectory.group)
            if reward is None:
                failed += 1
                assert trajectory.status is Status.FAILED
                assert (len(after), mask) == (1, [0]), "nothing to train on"
            else:
                (segment,) = trajectory.segments
                compatibility.same("tokens", before + after, segment.token_ids)
                compatibility.same("mask", [0] * len(before) + mask, segment.loss_mask)
                sampled = [logprob for logprob, own in zip(logprobs, mask, strict=True) if own]
                compatibility.same("logprobs", sampled, [p for p in segment.logprobs if p is not None])
                assert mask[0] == 1
                compatibility.same("versions", [call["version"]], versions(trajectory))
        prompts = call["prompts"]
        numbered = [prompts.index(prompt) for prompt in prompts]
        compatibility.same("groups", numbered, [names.index(name) for name in names])
    assert failed == 1
    steps = [row for row in end["log"] if "reward" in row]
    assert len(steps) == 2
    for step, row in enumerate(steps):
        rewards = [reward for call in calls if call["step"] == step for reward in call["rollout_reward"]]
        scored = [reward for reward in rewards if reward is not None]
        assert len(rewards) == 8
        assert row["reward"] == pytest.approx(np.mean(scored)), "a failed rollout counts in no mean"
        assert row["rollout/without_reward"] == pytest.approx(1 - len(scored) / 8)
        groups: dict[str, set[float | None]] = defaultdict(set)
        for call in (call for call in calls if call["step"] == step):
            for prompt, reward in zip(call["prompts"], call["rollout_reward"], strict=True):
                groups[prompt].add(reward)
        if any(len(rewards - {None}) > 1 for rewards in groups.values()):
            assert row["grad_norm"] > 0, "a group whose rewards differ teaches"
        elif None not in rewards:
            assert row["grad_norm"] == 0, "groups whose rewards are equal teach nothing"
    if processes == 2:
        compatibility.row(
            "TRL, GRPOTrainer", installed("trl"), start="`pip install rollyard[trl]`", page="trl.md",
            ran="two steps in two processes, with weights pushed after each, and a rollout that fails",
        )  # fmt: skip


async def test_the_asynchronous_trainer_gets_whole_groups_that_differ_with_their_advantages(
    served: tuple[Yard, AsyncClient], trainers: ForkedTrainers, tmp_path: Path, compatibility: Compatibility
) -> None:
    yard, client = served
    expected = await next_versions(client)
    tasks = write_tasks(tmp_path, 60, failing=range(60))
    ((*samples, end),) = await trained(yard, trainers, "async", tasks)
    assert end["version"] == await current_version(client) == expected[-1]
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for sample in samples:
        groups[sample["group"]].append(sample)
    for found in groups.values():
        rewards = [sample["reward"] for sample in found]
        assert len(set(rewards)) > 1
        assert [s["advantage"] for s in found] == pytest.approx(grpo(rewards).tolist())
    assert all(sample["sampled"] > 0 for sample in samples)
    assert any(len(found) == 3 for found in groups.values()), "a rollout without a reward is not a sample"
    assert list(groups) == sorted(groups)
    steps = [row for row in end["log"] if "reward" in row]
    assert len(steps) == 2
    assert all(math.isfinite(row["reward"]) and row["sample/staleness_max"] <= 2 for row in steps)
    assert steps[0]["ratio"] == pytest.approx(1, abs=1e-3), "the trainer computes the logprobs that were sampled"
    (batch,) = await client.batches()
    assert batch.status.terminal, "the stream ended with the training"
    page = await client.groups(batch.id)
    known = {version: n for n, version in enumerate(expected, start=1)}
    for group in page.groups:
        if group.delivery in groups:
            got, scored = groups[group.delivery], [t for t in group.rollouts if t.reward is not None]
            compatibility.same("groups", len(got), len(scored))
            oldest = [min(known[v] for v in versions(t)) for t in scored]
            compatibility.same("versions", [s["version"] for s in got], oldest)
            compatibility.same("rewards", [s["reward"] for s in got], [t.reward for t in scored])
            segments = [segment for t in scored for segment in t.segments]
            compatibility.same("tokens", [s["ids"] for s in got], [s.token_ids for s in segments])
            compatibility.same("mask", [s["mask"] for s in got], [s.loss_mask for s in segments])
            stored = [pytest.approx([p or 0.0 for p in s.logprobs], rel=1e-6) for s in segments]
            compatibility.same("logprobs", [s["logprobs"] for s in got], stored)
    assert 0 < batch.acknowledged <= end["taken"]
    compatibility.row(
        "TRL, AsyncGRPOTrainer", installed("trl"), start="`pip install rollyard[trl]`", page="trl.md",
        ran="two steps with weights pushed after each; the attention kernel, which needs a GPU, is replaced",
    )  # fmt: skip


@pytest.mark.long  # the trainers above run in the suite
@pytest.mark.parametrize("steps", [1, 2])
async def test_the_example_takes_steps_with_a_reward_each(trainers: ForkedTrainers, tmp_path: Path, steps: int) -> None:
    words = ("--steps", steps, "--tasks", "1", "--out", tmp_path)
    text = await asyncio.to_thread(trainers.run, "examples.trl.train", *words, home=tmp_path)
    assert len(re.findall(r"'reward': '[0-9.]+'", text)) == steps
    last = tmp_path / "weights" / f"step{steps + 1}" / "model.safetensors"
    assert last.exists(), "before the first step, and after each step"
