"""Other weights for the real vLLM: read from a folder, moved by a trainer; and its order of requests.

It is vLLM for CPUs, in float32, so that every token can be computed again. Its NCCL and CUDA IPC need GPUs. The backend of
transfers here is vLLM's plug-in for others: it takes the tensors from the request itself and does with them what the NCCL
one does with those of a broadcast. The tests share an engine and continue where the one before has left it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from rollyard.engine.process.metrics_scrape import read_load
from rollyard.engine.proxy import weights_transfer
from rollyard.engine.vllm.vllm_control import VllmControl
from rollyard.engine.weights.source import folder_checksum
from rollyard.kinds.rollout import Sampling
from rollyard.kinds.weights import Mode
from rollyard.server.batches.draw import engine_priority
from rollyard.store.batch_records import TaskHistory
from rollyard.tokens.endpoint_dialects import COMPLETIONS
from rollyard.wire.engine import WeightsTarget
from tests.engine.proxy.test_weights_transfer import done, parts_of, transferring
from tests.support.vllm_env import PYTHON, vllm_python
from tests.support.weights_yard import PROMPTS, Yard, certified, furthest, other_dir, recomputed, shown, yard

__all__ = ["certified", "other_dir", "vllm_python"]  # fixtures
AT_ONCE = 6
ARGS = ["--dtype", "float32", "--scheduling-policy", "priority", "--max-num-seqs", str(AT_ONCE)]
ARGS += ["--weight-transfer-config", json.dumps({"backend": "inline"})]
START_SECONDS = 600.0
CLOSE = 0.02
LONG = pytest.mark.long
PROMPT = random.Random(7).choices(range(40, 1000), k=2000)

pytestmark = [pytest.mark.heavy, pytest.mark.slow(80), pytest.mark.asyncio(loop_scope="module")]

BACKEND = """
import base64
from dataclasses import dataclass

from safetensors.torch import load
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class Init(WeightTransferInitInfo):
    pass


@dataclass
class Update(WeightTransferUpdateInfo):
    safetensors: str


class Inline(WeightTransferEngine):
    init_info_cls, update_info_cls = Init, Update

    def init_transfer_engine(self, info):
        pass

    def start_weight_update(self):
        initialize_layerwise_reload(self.model)

    def update_weights(self, info):  # the inherited one waits for an accelerator
        self.receive_weights(self.parse_update_info(info))

    def receive_weights(self, info):
        self.model.load_weights(list(load(base64.b64decode(info.safetensors)).items()))

    def finish_weight_update(self):
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self):
        pass


def register():
    WeightTransferEngineFactory.register_engine("inline", Inline)
"""


def plug_in(folder: Path) -> Path:
    """Write the plug-in and return the folder for `PYTHONPATH`."""
    about = folder / "inline_transfer-1.dist-info"
    about.mkdir(parents=True)
    (folder / "inline_transfer.py").write_text(BACKEND)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: inline_transfer\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\ninline = inline_transfer:register\n")
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def made(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory, certified: Any, vllm_python: str
) -> AsyncIterator[Yard]:
    folder = tmp_path_factory.mktemp("vllm")
    path = [str(plug_in(folder / "plug-in")), *filter(None, [os.environ.get("PYTHONPATH")])]
    vllm = {"python": vllm_python, "extraArgs": ARGS, "env": {"PYTHONPATH": os.pathsep.join(path)}}
    spec = {"model": {"path": str(model_dir)}, "engine": {"vllm": vllm}}
    control = partial(VllmControl, extra_args=ARGS)
    async with yard(spec, folder, certified, control=control, seconds=START_SECONDS) as found:
        yield found


@pytest.fixture
def before(made: Yard, model_dir: Path, other_dir: Path) -> Path:
    """The folder of the weights that are served when the test begins."""
    made.answers.clear()
    return model_dir if made.weights.report.checksum == folder_checksum(model_dir) else other_dir


@pytest.fixture
def after(before: Path, model_dir: Path, other_dir: Path) -> Path:
    """The folder of other weights."""
    return other_dir if before == model_dir else model_dir


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
    made: Yard, before: Path, after: Path
) -> None:
    old = made.weights.report.version
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(made.stream(p, 1000, after=60)) for p in PROMPTS]
        whole = group.create_task(made.whole(PROMPTS[0], 1000))
        spans = group.create_task(generate(made, PROMPTS[1], 1000))
        await made.under_way(len(PROMPTS), 30)
        await made.order(WeightsTarget(version="read", mode="Pause", path=str(after)))
    for answer in (task.result() for task in streams):
        assert answer.finish_reason is None, "nothing was interrupted"
        assert list(dict.fromkeys(answer.versions)) == [old, "read"]
        assert furthest(answer, recomputed(answer, before, after)) < CLOSE
    assert min(shown(made.answers, before, after, by) for by in (-16, 16)) > CLOSE
    answer, headers, _ = whole.result()  # it had nothing to show yet, so it was asked anew
    assert headers["X-Rollyard-Weights-Version"] == "read"
    assert furthest(answer, recomputed(answer, after, after)) < CLOSE
    assert spans.result() == [{"version": "read", "start": 0, "end": 1000}]
    assert made.supervisor.life == 1, "all of that was in place"


async def prefix_hits(made: Yard) -> int:
    async with made.supervisor.session() as http, http.get("http://engine/metrics") as answer:
        totals = read_load(await answer.text()).totals
    assert totals is not None
    assert totals.prefix_hits is not None
    return totals.prefix_hits


@pytest.mark.parametrize("mode", ["Pause", pytest.param("Abort", marks=LONG), pytest.param("Drain", marks=LONG)])
async def test_no_block_of_the_prefix_cache_outlives_its_weights(
    made: Yard, before: Path, after: Path, mode: Mode
) -> None:
    """A prompt of 2,000 tokens is in the cache, and requests that hold its blocks are under way."""
    old, new = made.weights.report.version, f"cached-{mode}"
    await made.stream(PROMPT, 8, temperature=0)
    hits = await prefix_hits(made)
    cached = await made.stream(PROMPT, 8, temperature=0)
    assert await prefix_hits(made) - hits > len(PROMPT) * 0.9
    assert (set(cached.versions), furthest(cached, recomputed(cached, before, before)) < CLOSE) == ({old}, True)
    made.answers.clear()
    async with asyncio.TaskGroup() as group:
        tokens = 300 if mode == "Drain" else 2000  # so many that the order comes before their end
        streams = [group.create_task(made.stream([*PROMPT, last], tokens, after=20)) for last in range(100, 103)]
        await made.under_way(len(streams), 10)
        await made.order(WeightsTarget(version=new, mode=mode, path=str(after)))
        answer = await made.stream(PROMPT, 8, temperature=0)
    assert (set(answer.versions), furthest(answer, recomputed(answer, after, after)) < CLOSE) == ({new}, True)
    assert furthest(answer, recomputed(answer, before, before)) > CLOSE
    for under_way in (task.result() for task in streams):
        assert furthest(under_way, recomputed(under_way, before, after)) < CLOSE
        assert under_way.versions[0] == old
        assert under_way.finish_reason == {"Pause": None, "Abort": "abort", "Drain": "length"}[mode]
    hits = await prefix_hits(made)
    again = await made.stream(PROMPT, 8, temperature=0)
    assert await prefix_hits(made) - hits > len(PROMPT) * 0.9, "the new weights have blocks of their own"
    assert (again.ids, furthest(again, answer.logprobs) < CLOSE) == (answer.ids, True)
    await made.order(WeightsTarget(version=f"back-{mode}", mode=mode, path=str(before)))
    back = await made.stream(PROMPT, 8, temperature=0)
    assert (back.ids, furthest(back, cached.logprobs) < CLOSE) == (cached.ids, True)


@pytest.mark.long  # the second vLLM takes 14 s of CPU time to start
async def test_weights_that_came_later_are_those_of_a_fresh_server(
    made: Yard, after: Path, certified: Any, tmp_path: Path
) -> None:
    await made.stream(PROMPT, 64, temperature=0)
    await made.order(WeightsTarget(version="compared", mode="Pause", path=str(after)))
    changed = await made.stream(PROMPT, 64, temperature=0)
    spec = {
        "model": {"path": str(after)},
        "engine": {"vllm": {"python": str(PYTHON), "extraArgs": ["--dtype", "float32"]}},
    }
    control = partial(VllmControl, extra_args=[])
    async with yard(spec, tmp_path, certified, control=control, seconds=START_SECONDS) as other:
        fresh = await other.stream(PROMPT, 64, temperature=0)
    assert changed.ids == fresh.ids
    assert furthest(changed, fresh.logprobs) < 1e-3


async def test_long_tasks_overtake_what_was_queued_before_them(made: Yard) -> None:
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
        running = [group.create_task(ask("running", Sampling(), 3500)) for _ in range(AT_ONCE)]
        await shows(http, 0)
        for number, (name, asked) in enumerate((("ordinary", Sampling()), ("long", sampling)), start=1):
            for _ in range(AT_ONCE):
                group.create_task(ask(name, asked, 50))
            await shows(http, number * AT_ONCE)
        for task in running:  # they would run for minutes, so that none ends before the others wait
            task.cancel()
    assert finished == ["long"] * AT_ONCE + ["ordinary"] * AT_ONCE


async def call(made: Yard, route: str, **body: Any) -> str:
    async with made.client.post(route, json=body or None) as answer:
        said = await answer.text()
        assert answer.status == 200, said
        return said


async def begin(made: Yard, part: bytes) -> None:
    await call(made, "/init_weight_transfer_engine", init_info={})
    await call(made, "/start_weight_update")
    await update(made, part)


async def update(made: Yard, part: bytes) -> None:
    await call(made, "/update_weights", update_info={"safetensors": base64.b64encode(part).decode()})


async def test_vllm_takes_weights_from_a_trainer(made: Yard, before: Path, after: Path) -> None:
    old, life = made.weights.report.version, made.supervisor.life
    await made.stream(PROMPT, 8)  # it is in the prefix cache now
    made.answers.clear()
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(made.stream(p, 3000, after=60)) for p in PROMPTS]
        await made.under_way(len(PROMPTS), 30)
        await transferring(made, WeightsTarget(version="moved", mode="Pause", path=str(after), transfer=True))
        async with made.client.get("/get_world_size") as answer:
            assert await answer.json() == {"world_size": 1}
        first, *rest = parts_of(after)
        await begin(made, first)
        for part in rest:
            await update(made, part)
        await call(made, "/finish_weight_update")
        await done(made, "moved")
    for stream in (task.result() for task in streams):
        assert stream.finish_reason is None, "nothing was interrupted"
        assert list(dict.fromkeys(stream.versions)) == [old, "moved"]
        assert furthest(stream, recomputed(stream, before, after)) < CLOSE
    assert (made.supervisor.life, made.weights.report.note) == (life, "")
    again = await made.stream(PROMPT, 20)
    assert furthest(again, recomputed(again, after, after)) < CLOSE


@pytest.mark.long  # a start takes 14 s of CPU time; tests/engine/proxy/test_weights_transfer.py has this without vLLM
async def test_vllm_is_started_anew_when_a_trainer_goes_in_the_middle(
    made: Yard, before: Path, after: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what its weights are then: a new process reads the folder."""
    life = made.supervisor.life
    await transferring(made, WeightsTarget(version="broken-off", mode="Pause", path=str(after), transfer=True))
    await begin(made, parts_of(after)[0])
    monkeypatch.setattr(weights_transfer, "SILENCE_SECONDS", 0.0)
    await done(made, "broken-off")
    assert made.supervisor.life == life + 1
    assert "TransferLost: the trainer was silent" in made.weights.report.note
    again = await made.stream(PROMPTS[0], 20)
    assert furthest(again, recomputed(again, after, after)) < CLOSE
