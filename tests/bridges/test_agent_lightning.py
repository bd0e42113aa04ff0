"""Agent Lightning, as released: its server, its trainer's client and its training loop, with our pool as controller."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from rollyard.client import AsyncClient
from rollyard.trajectory import Trajectory
from tests.support.bridge_process import BridgeProcess
from tests.support.compatibility import Compatibility, installed
from tests.support.live_weights import versions
from tests.support.released import environment
from tests.support.yard import MODEL, ROOT, Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")

VERSION, VERL, KEY = "1.0.2", "0.8.0", "agl-key"
RUN_SECONDS = 1200.0
STEPS, TASKS, SAMPLES = 3, 2, 2


@pytest.fixture
async def agl(tmp_path: Path) -> AsyncIterator[tuple[Path, str]]:
    """Yield the environment and the URL of its server."""
    python = await asyncio.to_thread(environment, "agentlightning", VERSION, "python3.12")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"port={port}", "host=127.0.0.1", f"key={KEY}", "hydra.run.dir=.", "hydra.output_subdir=null"]
    with (tmp_path / "agl.log").open("w") as log:
        server = subprocess.Popen([python / "bin" / "agl-server", *options], cwd=tmp_path, stdout=log, stderr=log)
    try:
        yield python, f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait(60)


async def serves(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def tasks(step: int) -> dict[str, list[str]]:
    """Make the columns of one step's dataset."""
    numbers = [10 * step + i + 2 for i in range(TASKS)]
    problems = [f"Please tell me the value of {n} * 6" for n in numbers]
    return {"kind": ["math"] * TASKS, "problem": problems, "answer": [str(n * 6) for n in numbers]}


def flaky(marker: Path) -> dict[str, list[str]]:
    """Make the columns of a step in which one rollout of the first task cannot be judged."""
    marker.touch()
    return {**tasks(9), "kind": ["flaky"] * TASKS, "fails_while": [str(marker), *["/none"] * (TASKS - 1)]}


async def test_three_steps_with_a_killed_bridge_and_a_fault(
    served: tuple[Yard, AsyncClient], agl: tuple[Path, str], tmp_path: Path
) -> None:
    (yard, client), (python, url) = served, agl
    before = {view.id async for view in client.rollouts(pool="demo")}
    await yard.until(lambda: serves(url))
    steps = json.dumps([tasks(0), tasks(1), flaky(tmp_path / "fails")])
    words = ("agent-lightning", "--pool", "demo", "--url", url, "--poll", "0.2")
    async with BridgeProcess(yard, *words, listens=False, AGL_KEY=KEY) as bridge:
        trainer = await asyncio.create_subprocess_exec(
            python / "bin" / "python", ROOT / "tests/support/agl_training.py", url, KEY, steps,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ""},
        )  # fmt: skip

        async def second_step() -> int:
            seen = {view.id async for view in client.rollouts(pool="demo")} - before
            return len(seen) > TASKS * SAMPLES

        await yard.until(second_step)
        bridge.kill()
        await asyncio.to_thread(bridge.start)
        text, _ = await trainer.communicate()
        assert trainer.returncode == 0
    got: list[list[dict[str, Any]]] = [json.loads(line) for line in re.findall(rb"^STEP (.*)$", text, re.M)]
    assert [len(step) for step in got] == [TASKS * SAMPLES] * STEPS

    failed = [rollout for step in got for rollout in step if rollout["rollout_state"] == "failed"]
    assert len(failed) == 1
    assert failed[0] in got[2]
    assert (failed[0]["final_reward"], failed[0]["triplets"]) == (None, [])
    assert "cannot be judged" in failed[0]["error_message"]

    ids = set()
    for rollout in (rollout for step in got for rollout in step if rollout["rollout_state"] == "succeeded"):
        named = [event["data"] for event in rollout["events"] if event["event_type"] == "rollyard"]
        assert len(named) == 1, "no event is posted twice"
        trajectory = await client.wait(named[0]["rollout_id"])
        ids.add(trajectory.id)
        assert rollout["final_reward"] == trajectory.reward
        assert len(rollout["triplets"]) == len(trajectory.turns)
        for triplet, turn in zip(rollout["triplets"], trajectory.turns, strict=True):
            segment, start = trajectory.segments[turn.segment], turn.prompt_length
            end = start + turn.response_length
            assert triplet["prompt"]["token_ids"] == segment.token_ids[:start]
            assert triplet["response"]["token_ids"] == segment.token_ids[start:end]
            assert triplet["response"]["log_probs"] == segment.logprobs[start:end]
    after = {view.id async for view in client.rollouts(pool="demo")} - before
    assert len(after) == STEPS * TASKS * SAMPLES, "no rollout was run twice"
    assert ids < after


LOOP_STEPS, LOOP_TASKS, PREFIX = 3, 2, "agl-step"
TWICE = """python3 - <<'EOF'
import json, os, urllib.request
for text in ("Please tell me the value of 12 * 6", "Please tell me the value of 13 * 6"):
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
EOF"""
"""An agent that forgets its first call. So its rollouts have two segments."""


def write_rows(folder: Path) -> None:
    """Write datasets. In the second step one rollout cannot be judged; in the third step one task has two segments."""
    marker = folder / "fails"
    marker.touch()
    for name, count in (("train", LOOP_STEPS * LOOP_TASKS), ("val", 1)):
        rows: list[dict[str, Any]] = []
        for i in range(count):
            fails = str(marker) if (name, i) == ("train", LOOP_TASKS) else "/none"
            problem = f"Please tell me the value of {i + 11} * 6"
            row: dict[str, Any] = {
                "task": {"kind": "flaky", "problem": problem, "answer": str((i + 11) * 6), "fails_while": fails}
            }
            row["sampling"] = {"max_tokens": 250}  # the trainer cuts responses of more than 300 tokens
            more = {"agent": {"type": "command", "command": TWICE}} if (name, i) == ("train", 2 * LOOP_TASKS) else {}
            rows.append({"rollyard": json.dumps({**row, **more})})
        (folder / f"{name}.json").write_text(json.dumps(rows))


@asynccontextmanager
async def followed(yard: Yard, folder: Path) -> AsyncIterator[None]:
    """Serve the model as the first version, and the checkpoints in the folder meanwhile."""
    await yard.rollyard("weights", "policy", "--version", f"{PREFIX}0", "--path", str(MODEL), "--wait")
    words = ("weights", "follow", str(folder), "--pool", "policy", "--prefix", PREFIX)
    env = {**os.environ, "HOME": str(yard.folder)}
    env.pop("ROLLYARD_KUBECONFIG", None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rollyard.cli.main", *words, cwd=ROOT, env=env, stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def loop(python: Path, folder: Path, url: str) -> dict[str, list[dict[str, Any]]]:
    """Run the training loop to its end. Return what it prints, by the word `what`."""
    more = {"HF_HUB_OFFLINE": "1", "VERL_FILE_LOGGER_PATH": str(folder / "log.jsonl"), "HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(
        python / "bin" / "python", ROOT / "tests/support/agl_loop.py", folder, url, KEY, MODEL, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **more, "PYTHONPATH": ""},
    )  # fmt: skip
    try:
        async with asyncio.timeout(RUN_SECONDS):
            text, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, text.decode()[-8000:]
    found = defaultdict(list)
    for line in re.findall(rb"^AGL (.*)$", text, re.M):
        fact = json.loads(line)
        found[fact["what"]].append(fact)
    return found


def compare(row: dict[str, Any], trajectory: Trajectory, compatibility: Compatibility) -> None:
    """Compare a row of a training batch with its segment."""
    (segment,) = [s for s in trajectory.segments if s.token_ids[: s.prompt_length] == row["prompts"]]
    start, end = segment.prompt_length, max(i for i, mask in enumerate(segment.loss_mask) if mask) + 1
    compatibility.same("tokens", row["prompts"] + row["responses"], segment.token_ids[:end])
    compatibility.same("mask", row["response_mask"], segment.loss_mask[start:end])
    logprobs = [0.0 if p is None else p for p in segment.logprobs[start:end]]
    compatibility.same("logprobs", row["rollout_log_probs"], np.asarray(logprobs, np.float32).tolist())
    compatibility.same("rewards", row["token_level_scores"][-1], trajectory.reward)
    assert not any(row["token_level_scores"][:-1])


@pytest.mark.long
async def test_three_iterations_of_its_training_loop_each_with_the_weights_of_the_step_before(
    served: tuple[Yard, AsyncClient], agl: tuple[Path, str], tmp_path: Path, compatibility: Compatibility
) -> None:
    (yard, client), (_, url) = served, agl
    # Its metadata asks for Python 3.12, and its code runs with 3.11.
    python = await asyncio.to_thread(environment, "agentlightning", f"{VERSION}-verl-{VERL}", "python3.11")
    before = {view.id async for view in client.rollouts(pool="demo")}
    write_rows(tmp_path)
    await yard.until(lambda: serves(url))
    words = ("agent-lightning", "--pool", "demo", "--url", url, "--poll", "0.2")
    async with BridgeProcess(yard, *words, listens=False, AGL_KEY=KEY), followed(yard, tmp_path):
        facts = await loop(python, tmp_path, url)

    ended = {fact["agl"]: await client.wait(fact["rollyard"]) for fact in facts["succeeded"]}
    (failed,) = facts["failed"]
    assert "cannot be judged" in failed["message"]
    run = {view.id async for view in client.rollouts(pool="demo")} - before
    assert len(run) == len(ended) + 1 == LOOP_STEPS * LOOP_TASKS * SAMPLES + 1, "no rollout was run twice"

    groups: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in facts["row"]:
        trajectory = ended[row["agl"]]  # so the failed rollout is not a row
        compare(row, trajectory, compatibility)
        assert trajectory.mode == "train"
        assert versions(trajectory) == [f"{PREFIX}{row['step'] - 1}"]
        groups[row["uid"]][row["agl"]] = row
    for group in groups.values():
        rewards = [row["token_level_scores"][-1] for row in group.values()]
        baseline = np.mean(rewards) if len(rewards) > 1 else 0
        signs = [np.sign(row["advantages"][0]) for row in group.values()]
        assert signs == np.sign(np.subtract(rewards, baseline)).tolist()

    logged = [json.loads(line)["data"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    validation, *steps = logged
    (judged,) = [trajectory for trajectory in ended.values() if trajectory.mode == "eval"]
    assert (validation["val/reward"], versions(judged)) == (judged.reward, [f"{PREFIX}0"])
    assert [step["training/n_rollouts_w_trace"] for step in steps] == [4, 3, 4]
    assert [step["training/n_sample_collected"] for step in steps] == [4, 3, 6]
    # The number of rows is a multiple of ppo_mini_batch_size * rollout.n, which is 2 here.
    assert [step["training/n_sample_trained"] for step in steps] == [4, 2, 6]
    assert len(facts["row"]) == 12
    compatibility.row(
        "Agent Lightning", installed("agentlightning", python), start="`rollyard bridge agent-lightning`",
        page="agent-lightning.md",
        ran=f"its training loop with verl {VERL}, without the actor, which needs a GPU: a validation, three steps with the "
        "weights of the step before, and a rollout that fails. Another test runs the trainer's client, and kills the bridge",
        missing={
            "versions": "one integer a turn, from the end of the version's name; the names are in the events",
            "groups": "its trainer groups by its own `data_id`",
        },
    )  # fmt: skip
