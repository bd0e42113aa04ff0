"""The two kinds a user writes: `InferencePool` (model servers) and `RolloutPool` (node agents with sandboxes)."""

from __future__ import annotations

import math
from datetime import datetime
from typing import ClassVar, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.autoscaling import (
    MAX_REPLICAS,
    Autoscaling,
    GpuLedger,
    InferenceAutoscaling,
    ScalingDecision,
    ScalingRecord,
)
from rollyard.kinds.base import Condition, Kinded, KindObject, Observed
from rollyard.kinds.figures import Figures
from rollyard.kinds.paths import AbsolutePath
from rollyard.kinds.quantity import Size, size_bytes, walltime_seconds, walltime_text
from rollyard.kinds.weights import WeightsStatus

MAX_NAME = 48
"""Allocations are called after their pool, with a suffix."""
SPARE_SECONDS = 5
"""Of a walltime, for what is in no stage's budget: the upload, and the way there. Nothing is placed where it does not fit."""
STARTUP_SECONDS = 30
"""Of a walltime, until its node agent is there to take something."""


P = TypeVar("P", bound=KindObject)


class Renewal(Kinded):
    """How allocations are replaced before their walltime ends, or because the pool was changed."""

    strategy: Literal["Overlap", "Replace"] = "Overlap"
    """Overlap: the successor is ready before the old one goes; Replace: it starts only when the old one's job has ended."""
    before_expiry_seconds: int | None = Field(default=None, ge=0)
    """How long before the walltime ends a successor should be ready; 900, or the sum of the stages' budgets, when left out."""
    max_surge: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    """Most successors at once that stand beside what they replace."""
    drain_timeout_seconds: int = Field(default=600, ge=0)
    """How long an allocation that goes may finish what it has in hand; the rest is handed back then."""


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


class InferencePoolSpec(Kinded):
    model: ModelSpec
    """What is served."""
    engine: EngineSpec
    """How it is served."""
    patience: Patience = Patience()
    """How long rollouts wait for an endpoint."""
    replicas: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    """Fixed size; leave out when `autoscaling` is set."""
    autoscaling: InferenceAutoscaling | None = None
    """Size that follows the demand; leave out when `replicas` is set."""
    max_gpu_hours: float | None = Field(default=None, gt=0)
    """GPU-hours that the pool may spend in all; then its allocations are given back, until this is raised."""
    suspend: bool = False
    """Keep the pool but give back all its allocations."""
    allocation: AllocationTemplate = AllocationTemplate()
    """What to ask of Slurm."""
    renewal: Renewal = Renewal()
    """What happens before a walltime ends."""

    @model_validator(mode="after")
    def _consistent(self) -> InferencePoolSpec:
        if self.engine.external is not None:
            given = (self.replicas, self.autoscaling, self.max_gpu_hours)
            if any(value is not None for value in given):
                raise ValueError(
                    "an external engine is started by others; leave out `replicas`, `autoscaling` and `maxGpuHours`"
                )
            return self
        _one_size(self.replicas, self.autoscaling)
        _gpus_to_count(self.max_gpu_hours, self.allocation)
        if self.engine.embedded is not None:
            _one_node(self.allocation, "the embedded engine")
        if self.engine.vllm is not None:
            _spans(self.allocation, self.engine.vllm)
        return self


def _one_node(allocation: AllocationTemplate, who: str) -> None:
    if allocation.nodes > 1:
        raise ValueError(f"`allocation.nodes`: write `replicas: {allocation.nodes}` instead: {who} works on one node")


def _spans(allocation: AllocationTemplate, engine: VllmEngine) -> None:
    ranks = engine.tensor_parallel_size * engine.pipeline_parallel_size
    if ranks % allocation.nodes:
        raise ValueError(
            f"`engine.vllm.tensorParallelSize` x `engine.vllm.pipelineParallelSize` ({ranks}) must be a multiple of "
            f"`allocation.nodes` ({allocation.nodes}): a replica is spread evenly over its nodes"
        )


def _one_size(replicas: int | None, autoscaling: Autoscaling | None) -> None:
    if replicas is not None and autoscaling is not None:
        raise ValueError("set `replicas` for a fixed size or `autoscaling` for one that follows demand, not both")
    if replicas is None and autoscaling is None:
        raise ValueError("set `replicas` for a fixed size or `autoscaling` for one that follows demand")


def _gpus_to_count(max_gpu_hours: float | None, allocation: AllocationTemplate) -> None:
    if max_gpu_hours is not None and allocation.gpus == 0:
        raise ValueError(
            "`maxGpuHours` counts the GPUs that `allocation` asks for, and it asks for none; "
            "set `allocation.gpusPerNode`, or leave out `maxGpuHours`"
        )


class Workers(Kinded):
    min: int = Field(default=1, ge=1, le=4096)
    """Stage workers at the start, and always."""
    max: int = Field(default=4, ge=1, le=4096)
    """Most stage workers while there is work for them, as far as the allocation's cores and memory go."""

    @model_validator(mode="after")
    def _ordered(self) -> Workers:
        if self.max < self.min:
            raise ValueError(f"`max` must be at least `min` ({self.min})")
        return self


class StageSpec(Kinded):
    workers: Workers = Workers()
    """Stage workers of one allocation."""


class InitStage(StageSpec):
    timeout_seconds: int = Field(default=300, ge=1)
    """Budget of the stage, started with the stage."""


class RunStage(StageSpec):
    timeout_seconds: int = Field(default=1800, ge=1)
    """Budget of the stage, started with the stage."""


class EvalStage(StageSpec):
    timeout_seconds: int = Field(default=900, ge=1)
    """Budget of the stage, started with the stage."""


class Stages(Kinded):
    init: InitStage = InitStage()
    """Prepare the sandbox."""
    run: RunStage = RunStage()
    """The agent's turns."""
    eval: EvalStage = EvalStage()
    """Score the artifact in a fresh sandbox."""


class SandboxTemplate(Kinded):
    runtime: Literal["auto", "apptainer", "singularity", "bubblewrap"] = "auto"
    """Container runtime; auto takes Apptainer, then Singularity, then bubblewrap."""
    default_image: AbsolutePath | None = None
    """Image when a task names none: a .sif file or a folder; left out: the node's own /usr, read-only."""
    network: Literal["none"] = "none"
    """Sandboxes have no network."""
    cpus: float = Field(default=0.25, gt=0)
    """CPU cores one sandbox counts for; a share of one is fair where sandboxes mostly wait for the model."""
    memory: Size = "2G"
    """Most memory of one process in the sandbox, and what a sandbox counts for where the allocation asks for memory."""
    disk: Size = "1G"
    """Most that may be written in the sandbox."""


def places(sandbox: SandboxTemplate, allocation: AllocationTemplate) -> int:
    """Sandboxes that fit into one allocation: by its cores, and by its memory where that is asked for by number."""
    by_cores, by_memory = _places(sandbox, allocation)
    return by_cores if by_memory is None else min(by_cores, by_memory)


def _places(sandbox: SandboxTemplate, allocation: AllocationTemplate) -> tuple[int, int | None]:
    by_cores = int(allocation.cpus_per_task / sandbox.cpus + 1e-9)  # 6 / 0.1 is not quite 60
    if not allocation.memory_bytes:
        return by_cores, None
    return by_cores, allocation.memory_bytes // max(1, size_bytes(sandbox.memory))


def _workers_fit(stages: Stages, sandbox: SandboxTemplate, allocation: AllocationTemplate) -> None:
    least = [stages.init.workers.min, stages.run.workers.min, stages.eval.workers.min]
    total, (by_cores, by_memory) = sum(least), _places(sandbox, allocation)
    wanted = []
    if by_cores < total:
        cores = math.ceil(total * sandbox.cpus - 1e-9)
        wanted.append(f"`allocation.cpusPerTask` {cores} or a `sandbox.cpus` below {sandbox.cpus:g}")
    if by_memory is not None and by_memory < total:
        wanted.append(f"more memory in `allocation` or a `sandbox.memory` below {sandbox.memory}")
    if wanted:
        raise ValueError(
            f"the stages have {' + '.join(map(str, least))} = {total} workers at least, and an allocation has room for "
            f"{places(sandbox, allocation)} sandboxes: lower `stages.*.workers.min`, or write {', and '.join(wanted)}"
        )


def _walltime_suffices(allocation: AllocationTemplate, budget_seconds: int) -> None:
    needed = budget_seconds + SPARE_SECONDS + STARTUP_SECONDS
    if walltime_seconds(allocation.time_limit) < needed:
        raise ValueError(
            f'`allocation.timeLimit`: write "{walltime_text(needed)}" or more, or lower `stages.*.timeoutSeconds`: it must '
            f"cover the budgets of the stages ({budget_seconds} s in all) and {needed - budget_seconds} s to start and to "
            "upload, or nothing could ever be placed"
        )


class RolloutPoolSpec(Kinded):
    inference: dict[str, str] = {}
    """Role -> InferencePool in the same namespace; the agent itself uses the role `policy`."""
    sandbox: SandboxTemplate = SandboxTemplate()
    """What each sandbox gets."""
    stages: Stages = Stages()
    """Worker pools and budgets of one allocation."""
    max_attempts: int = Field(default=3, ge=1, le=20)
    """Attempts before a rollout whose infrastructure keeps failing ends InfraFailed."""
    replicas: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    """Fixed size; leave out when `autoscaling` is set."""
    autoscaling: Autoscaling | None = None
    """Size that follows the demand; leave out when `replicas` is set."""
    max_gpu_hours: float | None = Field(default=None, gt=0)
    """GPU-hours that the pool may spend in all; then its allocations are given back, until this is raised."""
    suspend: bool = False
    """Keep the pool but give back all its allocations."""
    allocation: AllocationTemplate = AllocationTemplate()
    """What to ask of Slurm."""
    renewal: Renewal = Renewal()
    """What happens before a walltime ends."""

    @model_validator(mode="after")
    def _consistent(self) -> RolloutPoolSpec:
        _one_size(self.replicas, self.autoscaling)
        _gpus_to_count(self.max_gpu_hours, self.allocation)
        _one_node(self.allocation, "a node agent")
        _workers_fit(self.stages, self.sandbox, self.allocation)
        _walltime_suffices(self.allocation, self.budget_seconds)
        return self

    @property
    def budget_seconds(self) -> int:
        """What one rollout may take from INIT to EVAL."""
        return self.stages.init.timeout_seconds + self.stages.run.timeout_seconds + self.stages.eval.timeout_seconds


class Replicas(Observed):
    """`desired` is the target, `requested` is submitted, `observed` is seen in Slurm, `ready` is healthy."""

    desired: int = 0
    requested: int = 0
    observed: int = 0
    ready: int = 0


class EndpointStatus(Figures):
    """With its figures, which are up to 30 seconds old here; `rollyard top` has those of now."""

    id: str
    url: str
    sessions: int = 0
    """Live rollouts on it."""
    weights_version: str = ""
    ready: bool = False
    reason: str = ""
    """Why it is not ready."""
    capacity: float = 1
    """Beside the others of the pool; sessions are spread by it."""
    draining: bool = False
    """It takes no new rollouts, and those on it go on elsewhere with their next turn."""
    max_sessions: int | None = None
    """Most rollouts that it takes for now; null for no limit."""
    full: str = ""
    """Why there is a limit."""


class StageStatus(Observed):
    queued: int = 0
    in_flight: int = 0
    width: int = 0
    """Stage workers over all ready allocations."""


class PoolStatus(Observed):
    observed_generation: int = 0
    replicas: Replicas = Replicas()
    conditions: list[Condition] = []
    next_index: int = 0
    """Index of the next allocation."""
    startup_seconds: float | None = None
    """From submit to ready, as lately measured; a successor is submitted so much earlier."""
    startup_measured_at: datetime | None = None
    """When the last allocation that was counted in it became ready."""
    failures: int = 0
    """Allocations that ended by themselves since the last one that was ready; drives the back-off."""
    last_failure_time: datetime | None = None
    scaling: ScalingRecord = ScalingRecord()
    gpu_hours: float = 0
    """GPU-hours spent so far; of allocations that run, up to the last full ten minutes."""
    gpu_ledger: GpuLedger = GpuLedger()
    decisions: list[ScalingDecision] = []
    """The last scaling decisions, newest last."""


class InferencePoolStatus(PoolStatus):
    endpoints: list[EndpointStatus] = []
    weights: WeightsStatus = WeightsStatus()
    """Which weights it serves; written by the endpoint that orders an update and by the pool's controller, each on what it has
    read, so that neither overwrites the other."""
    load: Figures = Figures()
    """Of all endpoints together, as old as theirs."""


class RolloutPoolStatus(PoolStatus):
    stages: dict[str, StageStatus] = {}


class InferencePool(KindObject):
    """Model servers of one policy."""

    PLURAL: ClassVar[str] = "inferencepools"
    SINGULAR: ClassVar[str] = "inferencepool"
    SHORT: ClassVar[tuple[str, ...]] = ("ip",)
    USER_WRITTEN: ClassVar[bool] = True

    kind: Literal["InferencePool"] = "InferencePool"
    spec: InferencePoolSpec
    status: InferencePoolStatus = InferencePoolStatus()

    @model_validator(mode="after")
    def _room_for_a_suffix(self) -> Self:
        return _short_name(self)


class RolloutPool(KindObject):
    """Node agents that run rollouts in sandboxes."""

    PLURAL: ClassVar[str] = "rolloutpools"
    SINGULAR: ClassVar[str] = "rolloutpool"
    SHORT: ClassVar[tuple[str, ...]] = ("rp",)
    USER_WRITTEN: ClassVar[bool] = True

    kind: Literal["RolloutPool"] = "RolloutPool"
    spec: RolloutPoolSpec
    status: RolloutPoolStatus = RolloutPoolStatus()

    @model_validator(mode="after")
    def _room_for_a_suffix(self) -> Self:
        return _short_name(self)


def _short_name(pool: P) -> P:
    if len(pool.metadata.name) > MAX_NAME:
        raise ValueError(f"write a pool's name with at most {MAX_NAME} characters")
    return pool


Pool = InferencePool | RolloutPool
