"""A trainer moves weights into the real vLLM on the CPU, by vLLM's own routes.

Its NCCL and CUDA IPC need GPUs. The backend here is vLLM's plug-in for others: it takes the tensors from the request itself
and does with them what the NCCL one does with those of a broadcast.
"""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollyard.engine.proxy import weights_transfer
from rollyard.engine.vllm.vllm_control import VllmControl
from rollyard.wire.engine import WeightsTarget
from tests.engine.proxy.test_weights_transfer import done, parts_of, transferring
from tests.engine.vllm.test_weights import ARGS, CLOSE, START_SECONDS
from tests.support.vllm_env import vllm_python
from tests.support.weights_yard import PROMPTS, Yard, certified, furthest, other_dir, recomputed, yard

__all__ = ["certified", "other_dir", "vllm_python"]  # fixtures

pytestmark = pytest.mark.heavy

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


async def test_vllm_takes_weights_from_a_trainer_and_is_started_anew_when_that_breaks_off(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any, vllm_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = [*ARGS, "--weight-transfer-config", json.dumps({"backend": "inline"})]
    env = {"PYTHONPATH": str(plug_in(tmp_path / "plug-in"))}
    vllm = {"python": vllm_python, "extraArgs": args, "env": env}
    spec = {"model": {"path": str(model_dir)}, "engine": {"vllm": vllm}}
    control = partial(VllmControl, extra_args=args)
    async with yard(spec, tmp_path, certified, control=control, seconds=START_SECONDS) as made:
        old = made.weights.report.version
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(made.stream(p, 3000, after=100)) for p in PROMPTS]
            await made.under_way(len(PROMPTS), 30)
            await transferring(made, WeightsTarget(version="v2", mode="Pause", path=str(other_dir), transfer=True))
            async with made.client.get("/get_world_size") as answer:
                assert await answer.json() == {"world_size": 1}
            first, *rest = parts_of(other_dir)
            await begin(made, first)
            for part in rest:
                await update(made, part)
            await call(made, "/finish_weight_update")
            await done(made, "v2")
        for stream in (task.result() for task in streams):
            assert stream.finish_reason is None, "nothing was interrupted"
            assert list(dict.fromkeys(stream.versions)) == [old, "v2"]
            assert furthest(stream, recomputed(stream, model_dir, other_dir)) < CLOSE
        assert (made.supervisor.life, made.weights.report.note) == (1, "")
        again = await made.stream(PROMPTS[0] * 8, 20)
        assert furthest(again, recomputed(again, other_dir, other_dir)) < CLOSE
        # A trainer that goes in the middle leaves nobody knows what: a new process reads the folder.
        await transferring(made, WeightsTarget(version="v3", mode="Pause", path=str(model_dir), transfer=True))
        await begin(made, parts_of(model_dir)[0])
        monkeypatch.setattr(weights_transfer, "SILENCE_SECONDS", 0.0)
        await done(made, "v3")
        assert made.supervisor.life == 2
        assert "TransferLost: the trainer was silent" in made.weights.report.note
        again = await made.stream(PROMPTS[0], 20)
        assert furthest(again, recomputed(again, model_dir, model_dir)) < CLOSE
