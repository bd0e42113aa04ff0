"""The plan to start an engine on this node. The command of vLLM depends on the release that is installed here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from rollyard.core.errors import Invalid
from rollyard.engine.launch.command_line import Host, engine_command
from rollyard.engine.launch.container import container_program, in_container
from rollyard.engine.launch.gang_rank import GangRank
from rollyard.engine.process.child_process import EngineCommand
from rollyard.engine.vllm.installed_vllm import vllm_build
from rollyard.kinds.base import evolve
from rollyard.kinds.engine_spec import VllmEngine
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.model_folder.json_file import read_object


@dataclass(frozen=True)
class LaunchPlan:
    """The start of one engine."""

    spec: InferencePoolSpec
    uds: Path
    place: GangRank | None = None

    async def __call__(self) -> EngineCommand:
        """Return the command of `engine_command`. Raises EngineFailed if this node lacks a requirement, and
        Invalid for an external engine."""
        spec, vllm = self.spec, self.spec.engine.vllm
        if vllm is None:
            return engine_command(spec, self.uds, self.place)
        interpreter = await asyncio.to_thread(_interpreter, spec, vllm, self.uds)
        build = await vllm_build(interpreter, vllm.env)
        context = vllm.max_model_len or await asyncio.to_thread(_context_length, Path(spec.model.path))
        return engine_command(spec, self.uds, self.place, Host(interpreter, build, context))


def with_weights(spec: InferencePoolSpec, folder: str | None) -> InferencePoolSpec:
    """Return the pool's spec with the weights of another folder. The tokenizer stays the same, because a trainer may
    have written only weights to that folder."""
    model = spec.model
    if folder is None or folder == model.path:
        return spec
    changed = evolve(model, path=folder, tokenizer=model.tokenizer or model.path)
    return evolve(spec, model=changed)


def _interpreter(spec: InferencePoolSpec, engine: VllmEngine, uds: Path) -> list[str]:
    if engine.image is None:
        return [engine.python]
    models = dict.fromkeys(path for path in (spec.model.path, spec.model.tokenizer) if path is not None)
    gpus = spec.allocation.gpus > 0
    around = in_container(
        container_program(engine.image), engine.image, gpus=gpus, writable=[str(uds.parent)], readable=list(models)
    )
    return [*around, engine.python]


def _context_length(model: Path) -> int | None:
    """Read the context length from the model's `config.json`; None if the file or this value is missing."""
    try:
        config = read_object(model / "config.json")
    except Invalid:
        return None
    text = config.get("text_config")
    found = config.get("max_position_embeddings") or (text if isinstance(text, dict) else {}).get(
        "max_position_embeddings"
    )
    return found if isinstance(found, int) else None
