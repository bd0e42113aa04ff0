"""`RolloutPool`, one of the two kinds that a user writes: node agents with sandboxes, in stages."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.autoscaling import MAX_REPLICAS, Autoscaling
from rollyard.kinds.base import Kinded, KindObject, Observed
from rollyard.kinds.paths import AbsolutePath
from rollyard.kinds.pool import PoolStatus, Renewal, gpus_to_count, one_node, one_size, short_name
from rollyard.kinds.quantity import Size, size_bytes, walltime_seconds, walltime_text

SPARE_SECONDS = 5
"""Of a walltime, for what is in no stage's budget: the upload, and the way there. Nothing is placed where it does not fit."""
STARTUP_SECONDS = 30
"""Of a walltime, until its node agent is there to take something."""


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
        one_size(self.replicas, self.autoscaling)
        gpus_to_count(self.max_gpu_hours, self.allocation)
        one_node(self.allocation, "a node agent")
        _workers_fit(self.stages, self.sandbox, self.allocation)
        _walltime_suffices(self.allocation, self.budget_seconds)
        return self

    @property
    def budget_seconds(self) -> int:
        """What one rollout may take from INIT to EVAL."""
        return self.stages.init.timeout_seconds + self.stages.run.timeout_seconds + self.stages.eval.timeout_seconds


class StageStatus(Observed):
    queued: int = 0
    in_flight: int = 0
    """Rollouts that node agents hold in this stage, at work or in line for a stage worker."""
    width: int = 0
    """Stage workers over all ready allocations."""

    @property
    def at_work(self) -> int:
        """Stage workers that are busy."""
        return min(self.in_flight, self.width)

    @property
    def in_line(self) -> int:
        """Rollouts that node agents hold and that wait for a stage worker."""
        return self.in_flight - self.at_work

    @property
    def text(self) -> str:
        """`8/8 +20`: busy stage workers, of all of them, and rollouts in line for one."""
        return f"{self.at_work}/{self.width}" + (f" +{self.in_line}" if self.in_line else "")


class RolloutPoolStatus(PoolStatus):
    stages: dict[str, StageStatus] = {}


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
        return short_name(self)
