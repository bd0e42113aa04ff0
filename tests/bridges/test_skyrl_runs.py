"""SkyRL, as released: its batches, its checks and its advantages, with rollouts of a real pool."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollyard.client import AsyncClient
from rollyard.trajectory import Trajectory
from tests.support.compatibility import Compatibility, installed
from tests.support.released import environment
from tests.support.yard import MODEL, ROOT, Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.long]

VERSION, SAMPLES, RUN_SECONDS = "0.4.0", 4, 1200.0
TWICE = """cat > /tmp/twice.py <<'EOF'
import json, os, urllib.request
for words in (open(os.environ["ROLLYARD_PROMPT_FILE"]).read(), "Please tell me the value of 2 * 3"):
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": words}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers))
EOF
python3 /tmp/twice.py"""
"""An agent that forgets its first call. So its rollouts have two segments."""


def task(index: int, kind: str = "math", **more: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "problem": f"Please tell me the value of {index + 2} * 7",
        "answer": str((index + 2) * 7),
        **more,
    }


class SkyRL:
    """Programs with SkyRL in processes of their own, which share a folder."""

    def __init__(self, yard: Yard, folder: Path, environment: Path) -> None:
        self._yard, self._folder, self.environment = yard, folder, environment
        self.name = folder.name[:60].strip("_")
        self.result = folder / "result.json"
        (packages,) = environment.glob("lib/python*/site-packages")
        self._env = {**os.environ, "PYTHONPATH": f"{ROOT}:{packages}", "HOME": str(yard.folder), "HF_HUB_OFFLINE": "1"}

    async def begin(
        self, rows: list[dict[str, Any]], *words: str, program: str = "skyrl_runs", samples: int = SAMPLES
    ) -> asyncio.subprocess.Process:
        """Start a process on a dataset with these values of the column `rollyard`."""
        file = self._folder / "rows.jsonl"
        prompt = [{"role": "user", "content": "What is it?"}]
        file.write_text("".join(f"{json.dumps({'prompt': prompt, 'rollyard': json.dumps(row)})}\n" for row in rows))
        command = [
            "--kubeconfig",
            str(self._yard.data / "admin.kubeconfig"),
            "--rows",
            str(file),
            "--model",
            str(MODEL),
        ]
        command += ["--result", str(self.result), "--samples", str(samples), "--run", self.name, *words]
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", f"tests.support.{program}", *command, cwd=ROOT, env=self._env,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip

    async def run(self, rows: list[dict[str, Any]], *words: str, **more: Any) -> dict[str, Any]:
        """Run a process to its end; return its result."""
        process = await self.begin(rows, *words, **more)
        try:
            async with asyncio.timeout(RUN_SECONDS):
                text, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, text.decode()[-4000:]
        result: dict[str, Any] = json.loads(self.result.read_text())
        return result


@pytest.fixture
async def skyrl(served: tuple[Yard, AsyncClient], tmp_path: Path) -> SkyRL:
    # The interpreter is that of the tests: torch comes from their environment, and the packages are installed for it.
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return SkyRL(served[0], tmp_path, await asyncio.to_thread(environment, "skyrl", VERSION, python))


async def stored(client: AsyncClient, skyrl: SkyRL, output: dict[str, Any]) -> list[Trajectory]:
    """Return the trajectory of each row of an output."""
    ids = [f"{skyrl.name}-train-1-{name.replace('_', '.')}" for name in output["trajectory_ids"]]
    return await client.wait_many(ids)


async def test_a_killed_trainer_gets_its_rollouts_again_token_for_token_and_a_fault_moves_no_baseline(
    served: tuple[Yard, AsyncClient], skyrl: SkyRL, tmp_path: Path, compatibility: Compatibility
) -> None:
    yard, client = served
    marker = tmp_path / "fails"
    marker.touch()
    rows = [{"task": task(0)}, {"task": task(1, "flaky", fails_while=str(marker))}]
    before = {view.id async for view in client.rollouts(pool="demo")}

    killed = await skyrl.begin(rows)

    async def submitted() -> bool:
        return len({view.id async for view in client.rollouts(pool="demo")} - before) == len(rows) * SAMPLES

    await yard.until(submitted, seconds=300)
    killed.kill()
    await killed.communicate()
    output = await skyrl.run(rows)
    assert await submitted(), "no rollout was run twice"

    found = await stored(client, skyrl, output)
    assert [t.group for t in found] == [f"{skyrl.name}-train-1-{number}" for number in (0, 1) for _ in range(SAMPLES)]
    compatibility.same("groups", [name.partition("_")[0] for name in output["trajectory_ids"]], ["0"] * 4 + ["1"] * 4)
    for number, trajectory in enumerate(found):
        assert trajectory.mode == "train"
        if trajectory.reward is None:
            assert output["loss_masks"][number] == [0]
            assert output["stop_reasons"][number] == "error"
            continue
        (segment,) = trajectory.segments
        n = segment.prompt_length
        ids = output["prompt_token_ids"][number] + output["response_ids"][number]
        compatibility.same("tokens", ids, segment.token_ids)
        compatibility.same("mask", output["loss_masks"][number], segment.loss_mask[n:])
        compatibility.same("logprobs", output["rollout_logprobs"][number], [p or 0.0 for p in segment.logprobs[n:]])
        compatibility.same("rewards", output["rewards"][number], trajectory.reward)

    (fault,) = [number for number, trajectory in enumerate(found) if trajectory.reward is None]
    siblings = [t.reward for t in found[SAMPLES:] if t.reward is not None]
    assert output["rewards"][fault] == pytest.approx(np.mean(siblings))
    assert output["advantages"][fault] == pytest.approx(0, abs=1e-6)
    gains = [gain for number, gain in enumerate(output["advantages"]) if number >= SAMPLES and number != fault]
    assert np.sign(gains).tolist() == np.sign(np.subtract(siblings, np.mean(siblings))).tolist()
    assert output["trained_tokens"] == sum(sum(s.loss_mask) for t in found if t.reward is not None for s in t.segments)
    assert output["rollout_metrics"]["rollout/without_reward"] == 1
    scored = np.mean(
        [np.mean([t.reward for t in g if t.reward is not None]) for g in (found[:SAMPLES], found[SAMPLES:])]
    )
    assert output["metrics"]["reward/avg_raw_reward"] == pytest.approx(scored)
    compatibility.row(
        "SkyRL", installed("skyrl", skyrl.environment),
        start="`RollyardGenerator`", page="skyrl.md",
        ran="its dataset, batch, checks, rewards and advantages, around one generation; a killed trainer, a rollout "
        "that fails. Another test runs its two training loops without the passes of the model",
        missing={"versions": "its output has no field for them; two metrics have the oldest and the newest step"},
    )  # fmt: skip


async def test_each_segment_is_a_step_and_a_flat_output_counts_what_it_leaves_out(
    served: tuple[Yard, AsyncClient], skyrl: SkyRL
) -> None:
    _, client = served
    rows = [{"task": task(number), "agent": {"type": "command", "command": TWICE}} for number in (2, 3)]
    output = await skyrl.run(rows, "--step-wise")
    found = await stored(client, skyrl, output)
    segments = [(t, segment) for t in found[::2] for segment in t.segments]
    assert [t.id for t in found] == [t.id for t, _ in segments]
    assert output["is_last_step"] == [False, True] * (2 * SAMPLES)
    for number, (trajectory, segment) in enumerate(segments):
        assert output["prompt_token_ids"][number] + output["response_ids"][number] == segment.token_ids
        assert output["rewards"][number] == trajectory.reward
    assert output["trained_tokens"] == sum(sum(segment.loss_mask) for _, segment in segments)
    flat = await skyrl.run(rows)
    kept = sum(sum(mask) for mask in flat["loss_masks"])
    assert flat["rollout_metrics"]["rollout/left_out_tokens"] == output["trained_tokens"] - kept > 0


async def test_an_evaluation_has_rollouts_of_its_own(served: tuple[Yard, AsyncClient], skyrl: SkyRL) -> None:
    _, client = served
    metrics = await skyrl.run([{"task": task(4)}, {"task": task(5)}], "--phase", "eval")
    found = await client.wait_many([f"{skyrl.name}-eval-1-{row}.{k}" for row in (0, 1) for k in range(SAMPLES)])
    assert {t.mode for t in found} == {"eval"}
    assert metrics["eval/all/avg_score"] == pytest.approx(np.mean([t.reward for t in found]))


@pytest.mark.parametrize("words", [(), ("--asynchronous",)], ids=["synchronous", "asynchronous"])
async def test_each_step_of_the_training_loop_has_the_weights_of_the_step_before(
    served: tuple[Yard, AsyncClient], skyrl: SkyRL, tmp_path: Path, words: tuple[str, ...]
) -> None:
    yard, client = served
    export, env = tmp_path / "export", {**os.environ, "HOME": str(yard.folder)}
    env.pop("ROLLYARD_KUBECONFIG", None)
    follow = ["weights", "follow", str(export), "--pool", "policy", "--prefix", f"{skyrl.name}-"]
    following = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rollyard.cli.main", *follow, env=env, cwd=ROOT, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        more: dict[str, Any] = {"program": "skyrl_training", "samples": 2}
        result = await skyrl.run([{"task": task(i)} for i in range(6)], "--export", str(export), *words, **more)
    finally:
        following.send_signal(signal.SIGINT)
        await following.wait()
    assert [step["step"] for step in result["steps"]] == [1, 2, 3]

    used: dict[tuple[str, int], set[int]] = {}
    async for view in client.rollouts(pool="demo"):
        run, _, about = view.id.partition(f"{skyrl.name}-")
        if about and not run:
            phase, step, _ = about.split("-")
            for segment in (await client.wait(view.id)).segments:
                names = {version for version in segment.weights_version if version is not None}
                numbers = {
                    int(name.removeprefix(f"{skyrl.name}-")) if name.startswith(skyrl.name) else 0 for name in names
                }
                used.setdefault((phase, int(step)), set()).update(numbers)
    assert {step for phase, step in used if phase == "eval"} == {0, 1, 2, 3}
    if words:  # it begins rollouts before their step, and evaluates before the checkpoint of the step
        assert all(min(numbers) >= step - (2 if phase == "train" else 1) for (phase, step), numbers in used.items())
    else:
        assert {step for phase, step in used if phase == "train"} == {1, 2, 3}
        assert all(numbers == {step - (phase == "train")} for (phase, step), numbers in used.items())
        logged = [
            metrics["rollout/weights_step_min"] for metrics in result["logged"] if "rollout/weights_step_min" in metrics
        ]
        assert logged == [1, 2]
