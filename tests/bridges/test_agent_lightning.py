"""Agent Lightning, as released: its server and its trainer's own client, with our pool as rollout controller."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollyard.client import AsyncClient
from tests.support.bridge_process import BridgeProcess
from tests.support.compatibility import Compatibility, installed
from tests.support.released import environment
from tests.support.yard import ROOT, Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")

VERSION, KEY = "1.0.2", "agl-key"
STEPS, TASKS, SAMPLES = 3, 4, 2


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
    served: tuple[Yard, AsyncClient], agl: tuple[Path, str], tmp_path: Path, compatibility: Compatibility
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
        compatibility.same("rewards", rollout["final_reward"], trajectory.reward)
        assert len(rollout["triplets"]) == len(trajectory.turns)
        for triplet, turn in zip(rollout["triplets"], trajectory.turns, strict=True):
            segment, start = trajectory.segments[turn.segment], turn.prompt_length
            end = start + turn.response_length
            compatibility.same("tokens", triplet["prompt"]["token_ids"], segment.token_ids[:start])
            compatibility.same("tokens", triplet["response"]["token_ids"], segment.token_ids[start:end])
            compatibility.same("logprobs", triplet["response"]["log_probs"], segment.logprobs[start:end])
    after = {view.id async for view in client.rollouts(pool="demo")} - before
    assert len(after) == STEPS * TASKS * SAMPLES, "no rollout was run twice"
    assert ids < after
    compatibility.row(
        "Agent Lightning", installed("agentlightning", python), start="`rollyard bridge agent-lightning`",
        page="agent-lightning.md",
        ran="its server and `AglRolloutManager`, the trainer's client: three steps, a killed bridge, a rollout that fails",
        missing={
            "mask": "each turn is a sample of its own, with what was sampled apart from its prompt",
            "versions": "one integer a turn, from the end of the version's name; the names are in the events",
            "groups": "its trainer groups by its own `data_id`",
        },
    )  # fmt: skip
