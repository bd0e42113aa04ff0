"""From an InferencePool's spec to the engine's command line. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.engines.gang import Place
from rollyard.errors import Invalid
from rollyard.kinds.pools import EmbeddedEngine, InferencePoolSpec, ModelSpec, VllmEngine


@dataclass(frozen=True, slots=True)
class EngineCommand:
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the job."""


def engine_command(spec: InferencePoolSpec, uds: Path, place: Place | None = None) -> EngineCommand:
    """What serves this spec on a Unix socket; in any place of a gang but the first, what works for that.

    Raises Invalid for an engine that nobody starts here.
    """
    if spec.engine.vllm is not None:
        return _vllm(spec.model, spec.engine.vllm, uds, place)
    if spec.engine.embedded is not None:
        return _embedded(spec.model, spec.engine.embedded, uds)
    raise Invalid("an external engine is started by others")


def _embedded(model: ModelSpec, engine: EmbeddedEngine, uds: Path) -> EngineCommand:
    argv = [
        sys.executable,
        "-m",
        "rollyard.engines.embedded",
        "--model",
        model.path,
        "--served-name",
        model.served_name,
    ]
    argv += ["--uds", str(uds), "--max-sequences", str(engine.max_sequences)]
    if engine.max_model_len is not None:
        argv += ["--max-model-len", str(engine.max_model_len)]
    return EngineCommand(argv)


def _vllm(model: ModelSpec, engine: VllmEngine, uds: Path, place: Place | None) -> EngineCommand:
    """vLLM's OpenAI server. Its own --api-key would stand in argv and guards only a part of its paths: the door does it."""
    if place is not None and place.rank > 0:
        argv = [engine.python, "-m", "vllm.entrypoints.cli.main", "serve", model.path, "--headless"]
    else:
        argv = [engine.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model.path, "--uds", str(uds)]
    argv += ["--served-model-name", model.served_name]
    if place is not None:
        argv += ["--distributed-executor-backend", "mp", "--nnodes", str(place.size), "--node-rank", str(place.rank)]
        argv += ["--master-addr", place.address, "--master-port", str(place.port)]
    argv += ["--tensor-parallel-size", str(engine.tensor_parallel_size)]
    argv += ["--pipeline-parallel-size", str(engine.pipeline_parallel_size)]
    # Sampling is the request's alone: a model's generation_config must not bend logprobs.
    argv += ["--generation-config", "vllm", "--enable-prompt-tokens-details"]
    if engine.logprobs_mode == "processed":
        argv += ["--logprobs-mode", "processed_logprobs"]
    if model.tokenizer is not None:
        argv += ["--tokenizer", model.tokenizer]
    if engine.max_model_len is not None:
        argv += ["--max-model-len", str(engine.max_model_len)]
    env = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **engine.env}
    return EngineCommand([*argv, *engine.extra_args], env)
