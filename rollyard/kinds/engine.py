"""What serves an `InferencePool`: the model, and one of three kinds of engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from rollyard.kinds.base import Kinded
from rollyard.kinds.paths import AbsolutePath


class ModelSpec(Kinded):
    path: AbsolutePath
    """Folder of the model in Hugging Face layout, as the allocation's node sees it."""
    served_name: str = Field(default="policy", min_length=1)
    """Name under which engines serve it."""
    tokenizer: AbsolutePath | None = None
    """Folder of the tokenizer, when it is not the model's own."""


class VllmEngine(Kinded):
    """vLLM, started by us in the allocation."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs one replica is split over."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Pipeline stages."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Context length in tokens; the model's own when left out."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Logprobs of the model's own distribution, or of the one drawn from, behind temperature, penalties and truncation;
    rollouts must ask for the same."""
    image: AbsolutePath | None = None
    """Container image that has vLLM, a .sif file or a folder, run by Apptainer; left out: vLLM of the node itself."""
    python: str = Field(default="python3", min_length=1)
    """Interpreter that has vLLM installed, in the image where there is one."""
    extra_args: list[str] = []
    """Further arguments of vLLM's server; they win over ours."""
    env: dict[str, str] = {}
    """Environment variables of the engine; they win over ours."""

    @field_validator("extra_args")
    @classmethod
    def _known_logprobs(cls, value: list[str]) -> list[str]:
        if any(argument.split("=")[0] == "--logprobs-mode" for argument in value):
            raise ValueError("write `logprobsMode: raw` or `processed` instead of --logprobs-mode")
        return value


class EmbeddedEngine(Kinded):
    """Our own numpy engine: any small Qwen3-architecture model, on CPU."""

    max_model_len: int | None = Field(default=None, ge=1)
    """Context length in tokens; the model's own when left out."""
    max_sequences: int = Field(default=32, ge=1, le=1024)
    """Sequences decoded together."""


class ExternalEndpoint(Kinded):
    url: str = Field(pattern=r"^https?://")
    """Base URL of an OpenAI-shaped server, such as http://node7:8000/v1."""
    token_file: str | None = None
    """File with its bearer token, as the server sees it."""
    capacity: float = Field(default=1, gt=0, le=100_000)
    """How much it takes beside the others of the pool, such as its number of GPUs."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Which logprobs it gives: see `engine.vllm.logprobsMode`."""

    @property
    def base(self) -> str:
        """The URL below which its routes hang; what tells endpoints apart."""
        return base_url(self.url)


def base_url(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


class ExternalEngine(Kinded):
    """Servers that others run: no allocation, same checks and ejection."""

    endpoints: list[ExternalEndpoint] = []
    """The servers; more can be added and removed while the pool is in use."""

    @model_validator(mode="after")
    def _each_once(self) -> ExternalEngine:
        urls = [e.base for e in self.endpoints]
        twice = sorted({url for url in urls if urls.count(url) > 1})
        if twice:
            raise ValueError(f"write each endpoint once (now twice: {', '.join(twice)})")
        return self


class EngineSpec(Kinded):
    """Exactly one of `vllm`, `embedded`, `external`."""

    vllm: VllmEngine | None = None
    """vLLM, started by us."""
    embedded: EmbeddedEngine | None = None
    """Our own small CPU engine."""
    external: ExternalEngine | None = None
    """Servers that others run."""
    startup_timeout_seconds: int = Field(default=1800, ge=1)
    """How long one that we start may take until it is ready; a large model takes minutes to load."""

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
        """What our own engines give."""
        return self.vllm.logprobs_mode if self.vllm is not None else "raw"


class Patience(Kinded):
    """How long a rollout waits for a model server before it goes on at another."""

    connect_seconds: float = Field(default=10, gt=0, le=3600)
    """Until a connection is there."""
    first_token_seconds: float = Field(default=300, gt=0, le=86_400)
    """Until the first token of an answer; waiting in the engine and the prompt included."""
    idle_seconds: float = Field(default=60, gt=0, le=3600)
    """Between two tokens of an answer."""
