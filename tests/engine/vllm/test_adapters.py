"""LoRA adapters on the real vLLM, built for CPUs: each answer is that of its adapter, also where the prefix cache has the
prompt from another one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollyard.engine.vllm.vllm_control import VllmControl
from rollyard.kinds.weights import Mode
from rollyard.wire.engine import WeightsTarget
from tests.support.vllm_env import vllm_python
from tests.support.weights_yard import Answer, certified, furthest, yard

__all__ = ["certified", "vllm_python"]  # fixtures
ARGS = ["--dtype", "float32", "--enable-lora", "--max-lora-rank", "8"]
START_SECONDS = 600.0
CLOSE = 0.02
ORDERS: list[tuple[str, str | None, Mode]] = [
    ("v2", "a", "Pause"),
    ("v3", "b", "Drain"),
    ("v4", None, "Abort"),
    ("v5", "a", "Abort"),
]
"""Version, its adapter, and the mode in which it comes."""
PROMPT = random.Random(7).choices(range(40, 1000), k=2000)

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),  # peft uses the old name
]


def write_adapters(model: Path, folder: Path, names: Sequence[str]) -> None:
    """Write adapters with random numbers."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        settings = LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"])
        made = get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), settings)
        for parameter in made.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.15)
        made.save_pretrained(folder / name)


def computed(model: Path, adapter: Path | None, answer: Answer) -> list[float]:
    """Compute the logprobs of an answer with peft."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        loaded = PeftModel.from_pretrained(loaded, adapter)
    with torch.no_grad():
        table = torch.log_softmax(loaded(torch.tensor([[*answer.prompt, *answer.ids]])).logits[0], -1)
    at = len(answer.prompt) - 1
    return [table[at + i, token].item() for i, token in enumerate(answer.ids)]


async def test_an_adapter_answers_for_itself_alone(
    vllm_python: str, model_dir: Path, tmp_path: Path, certified: Any
) -> None:
    await asyncio.to_thread(write_adapters, model_dir, tmp_path, ["a", "b"])
    spec = {"model": {"path": str(model_dir)}, "engine": {"vllm": {"python": vllm_python, "extraArgs": ARGS}}}
    control = partial(VllmControl, extra_args=ARGS)
    served: dict[str, Path | None] = {}
    answers: list[Answer] = []
    async with yard(spec, tmp_path, certified, control=control, seconds=START_SECONDS) as made:
        served[made.weights.report.version] = None
        answers.append(await made.stream(PROMPT, 8, temperature=0))
        for version, name, mode in ORDERS:
            made.answers.clear()
            under_way = [asyncio.create_task(made.stream([*PROMPT, last], 200)) for last in (100, 101)]
            await made.under_way(2, 5)
            served[version] = tmp_path / name if name else None
            place = {"adapter": str(served[version])} if name else {"path": str(model_dir)}
            await made.order(WeightsTarget(version=version, mode=mode, **place))
            answers += [await made.stream(PROMPT, 8, temperature=0), *await asyncio.gather(*under_way)]
        assert made.supervisor.life == 1, "all of that was in place"
    assert len({tuple(answer.ids) for answer in answers[:1] + answers[1::3]}) == 3, "each adapter has its own answer"
    for answer in answers:
        (version,) = set(answer.versions)
        expected = await asyncio.to_thread(computed, model_dir, served[version], answer)
        assert furthest(answer, expected) < CLOSE, version
