"""Builds the engine's command line from an InferencePool's spec. Pure."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from rollyard.core.errors import Invalid
from rollyard.engine.launch.gang_rank import GangRank
from rollyard.engine.process.child_process import EngineCommand, EngineFailed
from rollyard.engine.vllm.installed_vllm import VllmBuild
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.base import Reason
from rollyard.kinds.engine_spec import EmbeddedEngine, ModelSpec, VllmEngine
from rollyard.kinds.inference_pool import InferencePoolSpec

OLDEST = Version("0.10.2")
"""The first vLLM that returns the ids of the sampled tokens (`return_token_ids`)."""
TRIED = "0.32"
"""The vLLM version that the tests use."""


_LONGEST_RPC_FOLDER = 107 - len("/00000000-0000-0000-0000-000000000000")
"""Length of a folder's path whose sockets have paths of 107 bytes, the most that Linux takes."""


@dataclass(frozen=True, slots=True)
class Host:
    """The vLLM to start on this node."""

    interpreter: Sequence[str]
    """The command that starts vLLM's Python."""
    build: VllmBuild
    context: int | None = None
    """Context length of the engine in tokens; None if it is not known."""


def engine_command(
    spec: InferencePoolSpec, uds: Path, place: GangRank | None = None, host: Host | None = None
) -> EngineCommand:
    """Return the command of an engine that serves this spec on a Unix socket. On ranks above 0 of a gang, return the
    command of a worker.

    `host`: required for vLLM. Raises EngineFailed if this vLLM lacks a required feature. Raises Invalid for an external
    engine, because Rollyard does not start it.
    """
    if spec.engine.vllm is not None:
        assert host is not None
        return _vllm(spec, spec.engine.vllm, uds, place, host)
    if spec.engine.embedded is not None:
        return _embedded(spec.model, spec.engine.embedded, uds)
    raise Invalid("others start an external engine; Rollyard runs no engine for it")


def _embedded(model: ModelSpec, engine: EmbeddedEngine, uds: Path) -> EngineCommand:
    argv = [
        sys.executable,
        "-m",
        "rollyard.engine.embedded",
        "--model",
        model.path,
        "--served-name",
        model.served_name,
    ]
    argv += ["--uds", str(uds), "--max-sequences", str(engine.max_sequences)]
    if model.tokenizer is not None:
        argv += ["--tokenizer", model.tokenizer]
    if engine.max_model_len is not None:
        argv += ["--max-model-len", str(engine.max_model_len)]
    return EngineCommand(argv)


def _vllm(spec: InferencePoolSpec, engine: VllmEngine, uds: Path, place: GangRank | None, host: Host) -> EngineCommand:
    """Return the command of vLLM's OpenAI server. The command has no --api-key, which would be visible in argv and
    protect only some paths. The reverse proxy checks the access tokens."""
    model, build = spec.model, host.build
    _require_options(
        build, ["--uds"] if place is None else ["--uds", "--headless", "--nnodes", "--node-rank", "--master-port"]
    )
    argv = [
        *host.interpreter,
        *build.serve,
        model.path,
        "--served-model-name",
        model.served_name,
        *_socket_arguments(uds, place),
    ]
    argv += ["--tensor-parallel-size", str(engine.tensor_parallel_size)]
    argv += ["--pipeline-parallel-size", str(engine.pipeline_parallel_size)]
    if engine.logprobs_mode == "processed":
        _require_options(build, ["--logprobs-mode"])
        argv += ["--logprobs-mode", "processed_logprobs"]
    if model.tokenizer is not None:
        argv += ["--tokenizer", model.tokenizer]
    if engine.max_model_len is not None:
        argv += ["--max-model-len", str(engine.max_model_len)]
    defaults = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if len(str(uds.parent)) <= _LONGEST_RPC_FOLDER:
        # vLLM's own sockets and temporary files are in /tmp otherwise, and each vLLM leaves some behind.
        defaults["VLLM_RPC_BASE_PATH"] = defaults["TMPDIR"] = str(uds.parent)
        # This cache, which torch has in TMPDIR, is for the next engine too.
        defaults["TORCHINDUCTOR_CACHE_DIR"] = str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}"))
    wanted = list(_PREFERRED_OPTIONS)
    if build.device == "cpu":
        wanted += _on_cpu(host.context, spec.allocation)
        defaults |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(spec.allocation.cpus_per_task)}
        defaults["TORCHDYNAMO_DISABLE"] = "1"  # otherwise torch compiles the sampling, in spite of --enforce-eager
        if engine.tensor_parallel_size * engine.pipeline_parallel_size == 1:
            # A separate worker process would bind threads, and would cost a third of the start-up time and 700 MB.
            defaults["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    argv += [word for option in wanted if option[0] in build.options for word in option]
    # These variables enable the routes that change weights. Only the Unix socket has all of these routes; the
    # reverse proxy exposes only those of a transfer, and only while an update waits for a transfer.
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", **engine.env}
    return EngineCommand([*argv, *engine.extra_args], env, defaults, foreign=True)


def _socket_arguments(uds: Path, place: GangRank | None) -> list[str]:
    """Return the arguments for the socket and the gang. Rank 0 of a gang serves requests; the other ranks are
    workers."""
    words = ["--uds", str(uds)] if place is None or place.rank == 0 else ["--headless"]
    if place is not None:
        words += ["--distributed-executor-backend", "mp", "--nnodes", str(place.size), "--node-rank", str(place.rank)]
        words += ["--master-addr", place.address, "--master-port", str(place.port)]
    return words


_PREFERRED_OPTIONS: tuple[tuple[str, ...], ...] = (
    # Sampling parameters come only from the request, not from the model's generation_config.
    ("--generation-config", "vllm"),
    ("--enable-prompt-tokens-details",),
    ("--enable-scale-out",),  # /inference/v1/generate
    ("--disable-access-log-for-endpoints", "/health,/metrics"),
)
"""Options that are left out if the installed vLLM does not know them."""


def _on_cpu(context: int | None, allocation: AllocationTemplate) -> list[tuple[str, ...]]:
    """Return the options for a replica on CPUs.

    The cache gets a quarter of the allocation's memory, but at least 1 GiB. By default vLLM takes nine tenths of the
    node's memory, even if other jobs share the node. Nothing is compiled, because that takes minutes and gains little.
    If the context length is known, prompts are computed in one piece. A seeded request whose prompt is split into
    chunks crashes vLLM, because vLLM cannot advance a random generator on CPUs.
    """
    cache = max(1 << 30, allocation.memory_bytes // 4)
    whole = [("--no-enable-chunked-prefill",), ("--max-num-batched-tokens", str(context))]
    return [("--kv-cache-memory-bytes", str(cache)), ("--enforce-eager",), *(whole if context is not None else [])]


def _require_options(build: VllmBuild, must: Sequence[str]) -> None:
    lacking = [option for option in must if option not in build.options]
    if lacking:
        why = (
            f"vLLM {build.version} does not know {', '.join(lacking)}; install a later release ({TRIED} is "
            "tested), or name one in `engine.vllm.python` or `engine.vllm.image`"
        )
        raise EngineFailed(Reason("EngineTooOld", why))
    try:
        old = Version(build.version) < OLDEST
    except InvalidVersion:
        return  # a custom build, whose version cannot be compared
    if old and not Version(build.version).is_devrelease:
        why = (
            f"vLLM {build.version} does not return token ids; install {OLDEST} or later "
            f"({TRIED} is tested), or name one in `engine.vllm.python` or `engine.vllm.image`"
        )
        raise EngineFailed(Reason("EngineTooOld", why))
