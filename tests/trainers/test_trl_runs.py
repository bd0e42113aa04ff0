"""TRL's two trainers, as released, on a real pool: rewards, exact versions, and a failed rollout without a reward."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollyard.client.advantages import grpo
from rollyard.kinds.rollout import Status
from tests.support.compatibility import Compatibility, installed
from tests.support.live_weights import current_version, versions
from tests.support.yard import MODEL, ROOT, Yard

pytestmark = pytest.mark.slow(110)
RUN_SECONDS = 1200.0
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


async def trained(yard: Yard, trainer: str, tasks: Path, *, processes: int = 1) -> list[list[dict[str, Any]]]:
    """Run the trainer in processes of its own; return what each recorded."""
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes]
    command: list[Any] = several if processes > 1 else []
    command += ["-m", "tests.support.trl_runs", trainer, "--kubeconfig", yard.data / "admin.kubeconfig"]
    command += ["--model", MODEL, "--folder", yard.folder, "--tasks", tasks]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    env["HOME"] = env["TMPDIR"] = str(yard.folder)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *map(str, command), cwd=ROOT, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )  # fmt: skip
    try:
        async with asyncio.timeout(RUN_SECONDS):
            text, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, text.decode()[-4000:]
    files = [yard.folder / f"{trainer}-{rank}.jsonl" for rank in range(processes)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
async def test_the_trainer_uses_the_weights_of_each_step_and_gives_a_failed_rollout_no_reward(
    yard: Yard, processes: int, compatibility: Compatibility
) -> None:
    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
        await yard.ready(client)
        records = await trained(yard, "grpo", write_tasks(yard.folder, 6, failing=[1]), processes=processes)
        for *mine, last in records:
            assert [(c["step"], c["version"]) for c in mine] == [(0, "step1"), (1, "step2"), (2, "step3")]
            assert last["version"] == await current_version(client) == "step4"
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
        assert len(steps) == 3
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
                ran="three steps in two processes, with weights pushed after each, and a rollout that fails",
            )  # fmt: skip


async def test_the_asynchronous_trainer_gets_whole_groups_that_differ_with_their_advantages(
    yard: Yard, compatibility: Compatibility
) -> None:
    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
        await yard.ready(client)
        tasks = write_tasks(yard.folder, 60, failing=range(60))
        ((*samples, end),) = await trained(yard, "async", tasks)
        assert end["version"] == await current_version(client) == "step4"
        groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for sample in samples:
            groups[sample["group"]].append(sample)
        for found in groups.values():
            rewards = [sample["reward"] for sample in found]
            assert len(set(rewards)) > 1
            assert [s["advantage"] for s in found] == pytest.approx(grpo(rewards).tolist())
        assert all(sample["sampled"] > 0 for sample in samples)
        assert any(len(found) == 3 for found in groups.values()), "a rollout without a reward is no sample"
        assert list(groups) == sorted(groups)
        steps = [row for row in end["log"] if "reward" in row]
        assert len(steps) == 3
        assert all(math.isfinite(row["reward"]) and row["sample/staleness_max"] <= 2 for row in steps)
        assert steps[0]["ratio"] == pytest.approx(1, abs=1e-3), "the trainer computes the logprobs that were sampled"
        (batch,) = await client.batches()
        assert batch.status.terminal, "the stream ended with the training"
        page = await client.groups(batch.id)
        known = {v: n for n, v in enumerate(("step1", "step2", "step3", "step4"), start=1)}
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
        ran="three steps with weights pushed after each; the attention kernel, which needs a GPU, is replaced",
    )  # fmt: skip
