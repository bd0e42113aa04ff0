"""verl's v1 trainer, as released, without its GPU workers: a fault, the weights of each step, and processes that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import Status
from rollyard.trajectory import Segment, Trajectory
from tests.support.compatibility import Compatibility, installed
from tests.support.live_weights import versions
from tests.support.released import environment
from tests.support.verl_sessions import GROUPS, PREFIX, SAMPLES, STEPS
from tests.support.yard import MODEL, ROOT, Yard

pytestmark = pytest.mark.long
RUN_SECONDS = 1200.0
TWO_CONVERSATIONS = """python3 - <<'EOF'
import json, os, urllib.request
for text in ("Please tell me the value of 12 * 6", "Please tell me the value of 13 * 6"):
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
EOF"""


def write_rows(folder: Path) -> None:
    """Write datasets of verl. One rollout of the second row cannot be judged, and the third row has two conversations."""
    marker = folder / "fails"
    marker.touch()
    for name, count in (("train", STEPS * GROUPS + 1), ("eval", 2)):
        rows = []
        for i in range(count):
            problem = f"Please tell me the value of {i + 11} * 6"
            fails = str(marker) if (name, i) == ("train", 1) else "/none"
            task = {"kind": "flaky", "problem": problem, "answer": str((i + 11) * 6), "fails_while": fails}
            more = {"agent": {"type": "command", "command": TWO_CONVERSATIONS}} if (name, i) == ("train", 2) else {}
            rows.append({
                "prompt": [{"role": "user", "content": problem}], "data_source": "sums", "extra_info": {"index": i},
                "reward_model": {"style": "rule", "ground_truth": ""}, "rollyard": json.dumps({"task": task, **more}),
                "agent_name": "rollyard" if name == "train" else "rollyard-eval",
            })  # fmt: skip
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


@asynccontextmanager
async def followed(yard: Yard, folder: Path) -> AsyncIterator[None]:
    """Serve the checkpoints in the folder meanwhile."""
    words = ("weights", "follow", str(folder), "--pool", "policy", "--prefix", PREFIX)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rollyard.cli.main", *words, cwd=ROOT, env={**os.environ, "HOME": str(yard.folder)}
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


class Training:
    """Steps of verl, each run in a process of its own."""

    def __init__(self, yard: Yard, mode: str, folder: Path) -> None:
        self._yard, self._mode, self._folder = yard, mode, folder
        self._python = environment("verl", "0.9.1", "python3.11")
        self.version = installed("verl", self._python)
        self.seen: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Set when the process has printed the word `what`."""

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    async def run(self, *words: str, code: int = 0) -> dict[str, list[dict[str, Any]]]:
        """Return what the process prints, by the word `what`."""
        command = [self._python / "bin/python", ROOT / "tests/support/verl_sessions.py", self._mode, self._folder]
        command += [self._yard.data / "admin.kubeconfig", MODEL]
        scratch = tempfile.mkdtemp(prefix="ray-")  # Ray's sockets need a short path
        env = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": scratch, "HOME": str(self._folder)}
        process = await asyncio.create_subprocess_exec(
            *map(str, command), *words, env={**os.environ, **env, "PYTHONPATH": str(ROOT)}, cwd=self._folder,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, limit=1 << 24, start_new_session=True,
        )  # fmt: skip
        self._pid = process.pid
        found, seen = defaultdict(list), []
        try:
            async with asyncio.timeout(RUN_SECONDS):
                assert process.stdout is not None
                async for line in process.stdout:
                    seen.append(line.decode())
                    if line.startswith(b"VERL "):
                        fact = json.loads(line[5:])
                        found[fact["what"]].append(fact)
                        self.seen[fact["what"]].set()
                await process.wait()
        finally:
            self.kill()
            await process.wait()
            shutil.rmtree(scratch, ignore_errors=True)
        assert process.returncode == code, "".join(seen)[-8000:]
        return found


async def stored(client: AsyncClient, sample: dict[str, Any]) -> Trajectory:
    _, trajectory = await client.rollout(sample["extra"]["rollout_id"])
    assert trajectory is not None
    return trajectory


def sampled_part(segment: Segment) -> int:
    """Number of tokens up to the last sampled one."""
    return max(i for i, mask in enumerate(segment.loss_mask) if mask) + 1


async def compare(
    client: AsyncClient, samples: list[dict[str, Any]], compatibility: Compatibility
) -> dict[str, Trajectory]:
    """Compare samples with the stored trajectories. Return these by verl's name of the session."""
    sessions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for sample in samples:
        sessions[sample["key"].rpartition("_")[0]].append(sample)
    found = {}
    for session, mine in sessions.items():
        mine.sort(key=lambda sample: int(sample["key"].rpartition("_")[2]))
        trajectory = found[session] = await stored(client, mine[0])
        for sample, segment in zip(mine, trajectory.segments, strict=True):
            end, start = sampled_part(segment), segment.prompt_length
            compatibility.same("tokens", sample["prompts"] + sample["responses"], segment.token_ids[:end])
            compatibility.same("mask", sample["response_mask"], segment.loss_mask[start:end])
            logprobs = [0.0 if p is None else p for p in segment.logprobs[start:end]]
            compatibility.same("logprobs", sample["rollout_log_probs"], np.float32(logprobs).tolist())
            compatibility.same("rewards", sample["rm_scores"][-1], trajectory.reward)
            assert not any(sample["rm_scores"][:-1])
            assert len(set(np.asarray(sample["advantages"])[np.asarray(sample["response_mask"]) == 1])) == 1
        compatibility.same("groups", "verl-" + session.rpartition("_")[0], trajectory.group)
    return found


async def test_verl_trains_on_each_segment_with_the_weights_of_its_step_while_the_server_is_killed(
    yard: Yard, tmp_path: Path, compatibility: Compatibility
) -> None:
    write_rows(tmp_path)
    training = Training(yard, "sync", tmp_path)
    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
        await yard.ready(client)
        async with followed(yard, tmp_path / "sync"), asyncio.TaskGroup() as tasks:
            run = tasks.create_task(training.run())
            await training.seen["submitted"].wait()
            await asyncio.to_thread(yard.kill)
            await asyncio.to_thread(yard.start)
        facts = run.result()
        ended = await compare(client, facts["sample"], compatibility)
        views = [view async for view in client.rollouts(pool="demo")]
        assert len(views) == STEPS * GROUPS * SAMPLES + 2, "no rollout was run twice"
        assert [view.status for view in views if view.status is Status.FAILED] == [Status.FAILED]
        assert len(ended) == STEPS * GROUPS * SAMPLES - 1, "the failed rollout is not a sample, and its sibling is one"
        assert {len(trajectory.segments) for trajectory in ended.values()} == {1, 2}
        for sample in facts["sample"]:
            extra, tag = sample["extra"], sample["tag"]
            wanted = [sample["step"] - 1] * 2
            assert [tag["min_global_steps"], tag["max_global_steps"]] == wanted, "the weights are those of the step"
            assert extra["weights_versions"] == versions(ended[sample["key"].rpartition("_")[0]])
        judged = [view for view in views if view.group not in {trajectory.group for trajectory in ended.values()}]
        for view in judged:
            _, trajectory = await client.rollout(view.id)
            assert trajectory is not None
            assert (trajectory.mode, versions(trajectory)) == ("eval", [f"{PREFIX}{STEPS}"])
        (validation,) = facts["validation"]
        rewards = [view.reward for view in judged]
        assert validation["val-core/sums/reward/mean@1"] == pytest.approx(np.mean(rewards))
    compatibility.row(
        "verl", training.version, start="[an agent loop file](verl.md#the-agent-loop-file)", page="verl.md",
        ran="its v1 trainer without the actor, which needs a GPU: two steps and a validation through its agent loop "
        "workers, TransferQueue, replay buffer and GRPO advantages, with a rollout that fails",
        missing={"versions": "a range of integer steps for each sample; the names are in `extra_fields`"},
    )  # fmt: skip


async def submitted(client: AsyncClient) -> bool:
    """Return whether all rollouts are submitted: two groups a step, and another one for the group that fails."""
    return len([view async for view in client.rollouts(pool="demo")]) == (STEPS * GROUPS + 1) * SAMPLES


async def test_a_killed_trainer_gets_the_rollouts_that_were_under_way(
    yard: Yard, tmp_path: Path, compatibility: Compatibility
) -> None:
    write_rows(tmp_path)
    training = Training(yard, "colocate_async", tmp_path)
    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
        await yard.ready(client)
        async with followed(yard, tmp_path / "colocate_async"):
            async with asyncio.TaskGroup() as tasks:
                run = tasks.create_task(training.run(code=-signal.SIGKILL))
                await training.seen["saved"].wait()
                await yard.until(lambda: submitted(client), 600)
                training.kill()
            before, under_way = run.result(), {view.id async for view in client.rollouts(pool="demo")}
            after = await training.run("resume")
        (metrics,) = before["metrics"]
        assert metrics["training/rollout_failure/evicted_samples"] == 1, "the group of the failed rollout is replaced"
        trained = await compare(client, before["sample"], compatibility)
        resumed = await compare(client, after["sample"], compatibility)
        assert len(trained) == len(resumed) == GROUPS * SAMPLES
        assert {t.id for t in resumed.values()} <= under_way - {t.id for t in trained.values()}
        assert {view.id async for view in client.rollouts(pool="demo")} == under_way, "no rollout was run twice"
        assert {v for t in resumed.values() for v in versions(t)} == {f"{PREFIX}1"}
