"""`rollyard ui --demo`: a recorded training on a real server, which leaves nothing behind however the command ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.page_proxy.recording import RECORDING, read
from tests.support.until import until
from tests.support.yard import ROOT, Yard

DEMO = [sys.executable, "-m", "rollyard.cli.main", "ui", "--demo", "--no-browser"]
MOST_BYTES = 500_000


async def test_a_recorded_training_is_shown_and_a_killed_command_leaves_nothing(tmp_path: Path) -> None:
    home = Yard(tmp_path)  # knows the processes of this home folder; its own server is never started
    env = home.user_env | {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    command = subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    assert command.stdout is not None
    assert command.stderr is not None
    address = (await asyncio.to_thread(command.stdout.readline)).strip()
    root = address.partition("/ui/")[0]
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:

        async def get(path: str) -> Any:
            async with http.get(root + path) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        async with http.get(address) as answer:
            assert answer.status == 200
        counts = await get("/v1/rollouts/counts")
        assert counts["Completed"] > 100
        assert counts["queued"] == counts["RUN"] == 0
        batches = (await get("/v1/batches"))["batches"]
        assert len(batches) > 4
        assert 0 <= time.time() - batches[0]["ended_at"] < 900, "the training has just ended"
        steps = (await get(f"/v1/history/batches/{batches[0]['id']}"))["steps"]
        assert steps
        assert sum((await get("/v1/history/pools/default/train"))["metrics"]["samples"]) > 5
        groups = (await get(f"/v1/batches/{batches[-1]['id']}/groups"))["groups"]
        sampled = groups[0]["rollouts"][0]["segments"][0]
        assert len(sampled["token_ids"]) == len(sampled["logprobs"]) > 50
        pools = (await get("/apis/rollyard.dev/v1alpha1/rolloutpools"))["items"]
        assert [pool["spec"]["suspend"] for pool in pools] == [True], "nothing runs"
        ended = (await get("/v1/allocations/history"))["allocations"]
        assert {one["reason"] for one in ended} == {"ended by Rollyard: its pool is suspended"}
        for one in groups[0]["rollouts"]:
            versions = [v for s in one["segments"] for v in s["weights_version"] if v is not None]
            shown = await get(f"/v1/rollouts?prefix={one['id']}")
            assert shown["rollouts"][0]["weights_versions"] == list(dict.fromkeys(versions))
    while "ROLLYARD_KUBECONFIG=" not in (line := await asyncio.to_thread(command.stderr.readline)):
        assert line, "the command ended"
    file = line.partition("ROLLYARD_KUBECONFIG=")[2].strip("`\n")
    out, _ = await home.rollyard("get", "rp", "--kubeconfig", file)
    assert "train" in out
    command.kill()
    command.communicate()
    await until(lambda: not list((tmp_path / "tmp").iterdir()))
    await until(lambda: not home.processes())


def test_the_recording_is_small_and_names_no_folder_of_the_machine_that_made_it(tmp_path: Path) -> None:
    assert RECORDING.stat().st_size < MOST_BYTES
    lines, began = read(RECORDING, tmp_path / "model")
    assert (tmp_path / "model" / "tokenizer.json").stat().st_size > 1000
    text = json.dumps([line.record for line in lines]).replace(str(tmp_path), "")
    for word in ("/tmp/", "/home/", "/root/", str(ROOT)):
        assert word not in text
    kinds = {line.record["kind"] for line in lines if line.table == "object"}
    assert {InferencePool.__name__, RolloutPool.__name__, "Event"} == kinds
    assert 0 < time.time() - began < 3600
