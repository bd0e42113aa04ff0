"""Engine of an `InferencePool`: the model, and one of three kinds of engine."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rollyard.kinds.base import KindModel
from rollyard.kinds.values.paths import AbsolutePath


class ModelSpec(KindModel):
    path: AbsolutePath
    """Folder of the model in Hugging Face layout; a path on the allocation's node."""
    served_name: str = Field(default="policy", min_length=1)
    """Name of the model in the engines' API."""
    tokenizer: AbsolutePath | None = None
    """Folder of the tokenizer. Default: the folder of the model."""
    tool_parser: str | None = Field(default=None, min_length=1, max_length=64)
    """Format of the model's tool calls, such as hermes or llama3_json. Default: the format in the model's chat template.
    `agent.tool_parser` of a rollout overrides this field."""


class VllmEngine(KindModel):
    """vLLM, which Rollyard starts in the allocation."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """Tensor parallel size: GPUs that share each layer."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Pipeline parallel size: parts into which the layers are divided."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Context length in tokens. Default: the model's own."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """raw: logprobs of the model's own distribution. processed: logprobs of the distribution that tokens are drawn from,
    after temperature, penalties and truncation. `sampling.logprobs` of a rollout must have the same value."""
    image: AbsolutePath | None = None
    """Container image with vLLM: a .sif file or a folder, run by Apptainer. Default: no image; vLLM must then be
    installed on the node."""
    python: str = Field(default="python3", min_length=1)
    """Python interpreter that has vLLM. If `image` is set, this is a path in the image."""
    extra_args: list[str] = []
    """Further arguments of vLLM's server. These arguments override Rollyard's own."""
    env: dict[str, str] = {}
    """Environment variables of the engine. These variables override Rollyard's own."""

    @field_validator("extra_args")
    @classmethod
    def _known_logprobs(cls, value: list[str]) -> list[str]:
        if any(argument.split("=")[0] == "--logprobs-mode" for argument in value):
            raise ValueError("write `logprobsMode: raw` or `processed` instead of --logprobs-mode")
        return value

    @property
    def takes_priority(self) -> bool:
        """Whether vLLM's scheduler orders requests by `priority`. If not, vLLM refuses a request that has a priority."""
        words = [word for argument in self.extra_args for word in argument.split("=", 1)]
        return ("--scheduling-policy", "priority") in pairwise(words)


class EmbeddedEngine(KindModel):
    """Rollyard's own numpy engine for small models of the Qwen3 architecture, on CPUs."""

    max_model_len: int | None = Field(default=None, ge=1)
    """Context length in tokens. Default: the model's own."""
    max_sequences: int = Field(default=32, ge=1, le=1024)
    """Greatest number of sequences that are decoded together."""


class ExternalEndpoint(KindModel):
    url: str = Field(pattern=r"^https?://")
    """Base URL of a server with OpenAI's API, such as http://node7:8000/v1."""
    token_file: str | None = None
    """File with the server's bearer token; a path on the node of the Rollyard server."""
    capacity: float = Field(default=1, gt=0, le=100_000)
    """Weight in load balancing between the pool's endpoints, such as the server's number of GPUs."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Kind of logprobs that the server returns; see `engine.vllm.logprobsMode`."""

    @property
    def base(self) -> str:
        """Base URL without `/v1`. This URL is different for each endpoint of a pool."""
        return base_url(self.url)


def base_url(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


class ExternalEngine(KindModel):
    """Model servers that others run, without allocations. Rollyard probes and ejects these servers like its own."""

    endpoints: list[ExternalEndpoint] = []
    """Servers of the pool. You can add and remove servers while the pool is in use."""

    @model_validator(mode="after")
    def _each_once(self) -> ExternalEngine:
        urls = [e.base for e in self.endpoints]
        twice = sorted({url for url in urls if urls.count(url) > 1})
        if twice:
            raise ValueError(f"write each endpoint once (given twice: {', '.join(twice)})")
        return self


class EngineSpec(KindModel):
    """Engine of the pool: exactly one of `vllm`, `embedded`, `external`."""

    vllm: VllmEngine | None = None
    """vLLM, started by Rollyard."""
    embedded: EmbeddedEngine | None = None
    """Rollyard's own small engine for CPUs."""
    external: ExternalEngine | None = None
    """Model servers that others run."""
    startup_timeout_seconds: int = Field(default=1800, ge=1)
    """Longest start-up of an engine that Rollyard starts, in seconds. A large model takes minutes to load."""

    @model_validator(mode="after")
    def _exactly_one(self) -> EngineSpec:
        given = [n for n in ("vllm", "embedded", "external") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"set exactly one of vllm, embedded, external (set now: {', '.join(given) or 'none'})")
        if self.external is not None and self.startup_timeout_seconds != 1800:
            raise ValueError("leave out `startupTimeoutSeconds`: an external engine is started by others")
        return self

    @property
    def logprobs(self) -> Literal["raw", "processed"]:
        """Kind of logprobs that engines started by Rollyard return."""
        return self.vllm.logprobs_mode if self.vllm is not None else "raw"


class Patience(KindModel):
    """Seconds for which a rollout waits for a model server before the rollout continues at another server."""

    connect_seconds: float = Field(default=10, gt=0, le=3600)
    """Longest time until the connection is open."""
    first_token_seconds: float = Field(default=300, gt=0, le=86_400)
    """Longest time until the first token of an answer. This includes waiting in the engine and processing the prompt."""
    idle_seconds: float = Field(default=60, gt=0, le=3600)
    """Longest time between two tokens of an answer."""
