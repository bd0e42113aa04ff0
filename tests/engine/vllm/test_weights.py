"""Other weights for a vLLM that is paused, and its order of requests.

It is the real one on the CPU, in float32, so that every token can be computed again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollyard.engine.process.metrics_scrape import read_load
from rollyard.engine.vllm.vllm_control import VllmControl
from rollyard.kinds.rollout import Sampling
from rollyard.server.batches.draw import engine_priority
from rollyard.server.store.batch_records import TaskHistory
from rollyard.tokens.endpoint_dialects import COMPLETIONS
from rollyard.wire.engine import WeightsTarget
from tests.support.vllm_env import vllm_python
from tests.support.weights_yard import PROMPTS, Yard, certified, furthest, other_dir, recomputed, shown, yard

__all__ = ["certified", "other_dir", "vllm_python"]  # fixtures
AT_ONCE = 6
ARGS = ["--dtype", "float32", "--scheduling-policy", "priority", "--max-num-seqs", str(AT_ONCE)]
START_SECONDS = 600.0
CLOSE = 0.02

pytestmark = pytest.mark.heavy


def spec(model: Path, python: str) -> dict[str, Any]:
    vllm = {"python": python, "extraArgs": ARGS}
    return {"model": {"path": str(model)}, "engine": {"vllm": vllm}}


async def generate(made: Yard, prompt: list[int], tokens: int) -> list[dict[str, Any]]:
    """The spans that vLLM itself tells of one answer."""
    sampling = {"max_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
    body = {"model": "policy", "token_ids": prompt, "sampling_params": sampling}
    async with made.client.post("/inference/v1/generate", json=body) as response:
        said = await response.json()
        assert response.status == 200, said
        spans: list[dict[str, Any]] = said["choices"][0]["weight_versions"]
        return spans


async def test_a_pause_interrupts_nothing_and_each_token_has_the_version_that_made_it(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any, vllm_python: str
) -> None:
    control = partial(VllmControl, extra_args=ARGS)
    async with yard(spec(model_dir, vllm_python), tmp_path, certified, control=control, seconds=START_SECONDS) as made:
        old = made.weights.report.version
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(made.stream(p, 1000, after=100)) for p in PROMPTS]
            whole = group.create_task(made.whole(PROMPTS[0], 1000))
            spans = group.create_task(generate(made, PROMPTS[1], 1000))
            await made.under_way(len(PROMPTS), 30)
            await made.order(WeightsTarget(version="v2", mode="Pause", path=str(other_dir)))
        for answer in (task.result() for task in streams):
            assert answer.finish_reason is None, "nothing was interrupted"
            assert list(dict.fromkeys(answer.versions)) == [old, "v2"]
            assert furthest(answer, recomputed(answer, model_dir, other_dir)) < CLOSE
        assert min(shown(made.answers, model_dir, other_dir, by) for by in (-16, 16)) > CLOSE
        answer, headers, _ = whole.result()  # it had nothing to show yet, so it was asked anew
        assert headers["X-Rollyard-Weights-Version"] == "v2"
        assert furthest(answer, recomputed(answer, other_dir, other_dir)) < CLOSE
        assert spans.result() == [{"version": "v2", "start": 0, "end": 1000}]
        # a prompt that the old weights have in the cache
        answer = await made.stream(PROMPTS[0] * 8, 20)
        assert furthest(answer, recomputed(answer, other_dir, other_dir)) < CLOSE
        # It was not started for transfers: its routes are there all the same, and it reads the folder
        async with made.supervisor.session() as http, http.post("http://engine/start_weight_update") as refused:
            assert refused.status == 500
        await made.order(WeightsTarget(version="v3", path=str(model_dir), transfer=True))
        assert made.weights.report.note == "NoTransfer: write `--weight-transfer-config` in spec.engine.vllm.extraArgs"
        assert made.supervisor.life == 1, "all of that was in place"
        await check_priorities(made)


async def check_priorities(made: Yard) -> None:
    """Requests of long tasks, with the server's priority, overtake requests that were queued before them."""
    history = TaskHistory(groups=1, rollouts=8, seconds=300.0)
    sampling = Sampling(extra={"priority": engine_priority(history, mean_seconds=100.0)}, temperature=1.0)
    finished: list[str] = []

    async def ask(name: str, sampling: Sampling, tokens: int) -> None:
        body = COMPLETIONS.body("policy", PROMPTS[0], sampling, tokens, [])
        async with made.client.post("/v1/completions", json=body | {"ignore_eos": True}) as response:
            assert response.status == 200, await response.text()
            await response.read()
        finished.append(name)

    async def shows(http: aiohttp.ClientSession, waiting: int) -> None:
        async with asyncio.timeout(made.seconds):
            while True:
                async with http.get("http://engine/metrics") as answer:
                    load = read_load(await answer.text())
                if (load.running, load.waiting) == (AT_ONCE, waiting):
                    return
                await asyncio.sleep(0.02)

    async with made.supervisor.session() as http, asyncio.TaskGroup() as group:
        for number, (name, asked, tokens) in enumerate(
            (("running", Sampling(), 800), ("ordinary", Sampling(), 200), ("long", sampling, 200))
        ):
            for _ in range(AT_ONCE):
                group.create_task(ask(name, asked, tokens))
            await shows(http, number * AT_ONCE)
    assert [name for name in finished if name != "running"] == ["long"] * AT_ONCE + ["ordinary"] * AT_ONCE
