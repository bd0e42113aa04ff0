"""`RolloutPool`, one of the two kinds that a user writes: node agents that run rollouts in sandboxes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.autoscaling import MAX_REPLICAS, Autoscaling
from rollyard.kinds.base import KindModel, StatusModel
from rollyard.kinds.pool import PoolObject, PoolStatus, Renewal, check_gpus_counted, check_one_node, check_one_size
from rollyard.kinds.rollout import AgentSpec
from rollyard.kinds.sandbox_template import SandboxTemplate, sandbox_capacities, sandbox_capacity
from rollyard.kinds.values.quantity import walltime_seconds, walltime_text

POLICY_ROLE = "policy"
"""Role of the model that agents sample from."""
DEFAULT_MAX_ATTEMPTS = 3
SPARE_SECONDS = 5
"""Seconds of a walltime that are kept for work outside of the stages' budgets, such as the upload."""
DEFAULT_TTL_SECONDS = 30 * 86_400
"""Seconds for which results are kept by default."""
TURN_SECONDS, TURN_SHARE = 60.0, 0.1
"""Walltime for sampling one turn and for a snapshot, where a rollout can go on elsewhere afterwards: seconds, but at most a
share of RUN's budget."""
STARTUP_SECONDS = 30
"""Seconds of a walltime that are kept for the start of the node agent."""


class Workers(KindModel):
    min: int = Field(default=1, ge=1, le=4096)
    """Least number of stage workers. A node agent starts with this number."""
    max: int = Field(default=4, ge=1, le=4096)
    """Greatest number of stage workers. The allocation's cores and memory may allow fewer."""

    @model_validator(mode="after")
    def _ordered(self) -> Workers:
        if self.max < self.min:
            raise ValueError(f"`max` must be at least `min` ({self.min})")
        return self


class StageSpec(KindModel):
    workers: Workers = Workers()
    """Number of stage workers in one allocation."""


class InitStage(StageSpec):
    timeout_seconds: int = Field(default=300, ge=1)
    """Seconds that a rollout may spend in the stage. The wait for a stage worker is not counted."""


class RunStage(StageSpec):
    timeout_seconds: int = Field(default=1800, ge=1)
    """Seconds that a rollout may spend in the stage. The wait for a stage worker is not counted."""


class EvalStage(StageSpec):
    timeout_seconds: int = Field(default=900, ge=1)
    """Seconds that a rollout may spend in the stage. The wait for a stage worker is not counted."""


class Stages(KindModel):
    init: InitStage = InitStage()
    """Stage that prepares the sandbox."""
    run: RunStage = RunStage()
    """Stage that runs the agent's turns."""
    eval: EvalStage = EvalStage()
    """Stage that scores the artifact in a fresh sandbox."""

    @property
    def budget_seconds(self) -> int:
        """Sum of the time budgets of the three stages, in seconds."""
        return self.init.timeout_seconds + self.run.timeout_seconds + self.eval.timeout_seconds

    @property
    def movable_seconds(self) -> float:
        """Seconds of walltime for a rollout that can go on elsewhere after each turn: those of INIT, the longest tool call and
        sampling a turn, or those of EVAL, which is not divided."""
        tool = AgentSpec.model_fields["tool_timeout_seconds"].default
        return min(
            self.budget_seconds, max(self.turn_seconds(self.init.timeout_seconds, tool), self.eval.timeout_seconds)
        )

    def turn_seconds(self, init: float, tool: float) -> float:
        """Seconds of INIT and one turn with a snapshot. `init`, `tool`: longest times of INIT and of one tool call."""
        run = self.run.timeout_seconds
        return init + min(tool, run) + min(TURN_SECONDS, TURN_SHARE * run)


def _workers_fit(stages: Stages, sandbox: SandboxTemplate, allocation: AllocationTemplate) -> None:
    least = [stages.init.workers.min, stages.run.workers.min, stages.eval.workers.min]
    total, (by_cores, by_memory) = sum(least), sandbox_capacities(sandbox, allocation)
    wanted = []
    if by_cores < total:
        cores = math.ceil(total * sandbox.cpus - 1e-9)
        wanted.append(
            f"`allocation.cpusPerTask` {cores} or a `sandbox.cpus` of at most {_most(allocation.cpus_per_task / total)}"
        )
    if by_memory is not None and by_memory < total:
        wanted.append(f"more memory in `allocation` or a `sandbox.memory` below {sandbox.memory}")
    if sandbox.gpus and allocation.gpus < total * sandbox.gpus:
        wanted.append(f"`allocation.gpusPerNode` {total * sandbox.gpus} or a smaller `sandbox.gpus`")
    if wanted:
        raise ValueError(
            f"the stages need at least {' + '.join(map(str, least))} = {total} workers, but an allocation has room for "
            f"{sandbox_capacity(sandbox, allocation)} sandboxes: lower `stages.*.workers.min`, or write {', and '.join(wanted)}"
        )


def _most(cpus: float) -> str:
    """Return a number that is not greater, with three digits."""
    scale = 10.0 ** (2 - math.floor(math.log10(cpus)))
    return f"{math.floor(cpus * scale + 1e-9) / scale:g}"


def _roles_known(roles: Mapping[str, RoleLimits], inference: Mapping[str, str]) -> None:
    for role in roles:
        if role == POLICY_ROLE:
            raise ValueError(f"`roles` is for models that task handlers call; leave {role!r} out")
        if role not in inference:
            raise ValueError(f"`roles.{role}` needs an InferencePool: set `inference.{role}`, or leave it out")


def _walltime_suffices(spec: RolloutPoolSpec) -> None:
    least = math.ceil(spec.least_seconds)
    needed = least + SPARE_SECONDS + STARTUP_SECONDS
    if walltime_seconds(spec.allocation.time_limit) < needed:
        what = "INIT and a turn, or EVAL" if spec.resume == "auto" else "the budgets of the stages"
        raise ValueError(
            f'`allocation.timeLimit`: write "{walltime_text(needed)}" or more, or lower `stages.*.timeoutSeconds`; it must '
            f"cover {what} ({least} s in all) and {needed - least} s for start and upload; with less, no rollout could ever "
            "start"
        )


class RoleLimits(KindModel):
    """Limits of one model by role, for each attempt of a rollout."""

    max_calls: int = Field(default=200, ge=1, le=100_000)
    """Greatest number of calls, including repeated ones."""
    max_tokens: int = Field(default=2_000_000, ge=1, le=10**9)
    """Greatest number of tokens of all calls together, those of the prompts included."""
    seconds: float = Field(default=1800.0, gt=0, le=10**6)
    """Longest time of all calls together, the waits for a model server included. A model that takes longer has failed, and
    the rollout gets a new attempt."""
    retries: int = Field(default=4, ge=0, le=20)
    """Number of times that a question is asked again after an answer that does not have its form."""


class RolloutPoolSpec(KindModel):
    inference: dict[str, str] = {}
    """Role -> InferencePool in the same namespace. The agent uses the role `policy`. Task handlers call the models of the
    other roles, such as `judge`."""
    roles: dict[str, RoleLimits] = {}
    """Role -> limits of a task handler's calls of this role's model. A role that is missing here has the default limits."""
    sandbox: SandboxTemplate = SandboxTemplate()
    """Resources and image of each sandbox."""
    stages: Stages = Stages()
    """Stage workers of one allocation, and the time that a rollout may spend in each stage."""
    max_attempts: int = Field(default=DEFAULT_MAX_ATTEMPTS, ge=1, le=20)
    """Greatest number of attempts of a rollout. If the infrastructure fails in each attempt, the rollout ends
    InfraFailed."""
    resume: Literal["auto", "never"] = "auto"
    """auto: rollouts whose node is lost go on at their last turn elsewhere, where that is safe. never: they begin again."""
    replicas: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    """Fixed number of allocations. Set this or `autoscaling`."""
    autoscaling: Autoscaling | None = None
    """Bounds within which the number of allocations follows the demand. Set this or `replicas`."""
    max_gpu_hours: float | None = Field(default=None, gt=0)
    """Limit of the pool's total GPU-hours. At the limit the pool gives back its allocations. The pool gets new ones
    only after you raise the limit."""
    suspend: bool = False
    """True: the pool gives back all its allocations and remains as an object."""
    restarted_at: datetime | None = None
    """Time of the last restart that somebody asked for. A change replaces all allocations, as a change of `allocation`
    does. `rollyard restart` writes it."""
    allocation: AllocationTemplate = AllocationTemplate()
    """Slurm resources of one allocation."""
    max_queued_rollouts: int | None = Field(default=1_000_000, ge=1, le=10**9)
    """Limit of the pool's queue. While at least this number of rollouts wait in the queue, each submit is refused with 429.
    Rollouts of batches are not counted. Clients wait and submit again. Null: no limit."""
    ttl_seconds_after_finished: int = Field(default=DEFAULT_TTL_SECONDS, ge=0, le=10**10)
    """Seconds for which the record and the trajectory of a rollout are kept after its end. The rollouts of a batch's
    delivered groups are kept for this time after the end of the batch. But a group that the trainer has acknowledged is
    deleted one hour after the acknowledgement. The default is 30 days."""
    artifact_ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=10**10)
    """Seconds for which the artifact of a rollout is kept after its end, if the rollout is kept longer. Null: as long as
    the rollout. A rollout without its artifact keeps its trajectory, and cannot be scored again."""
    renewal: Renewal = Renewal()
    """Replacement of allocations before their walltime ends."""

    @model_validator(mode="after")
    def _consistent(self) -> RolloutPoolSpec:
        check_one_size(self.replicas, self.autoscaling)
        check_gpus_counted(self.max_gpu_hours, self.allocation)
        check_one_node(self.allocation, "a node agent")
        _roles_known(self.roles, self.inference)
        _workers_fit(self.stages, self.sandbox, self.allocation)
        _walltime_suffices(self)
        return self

    @property
    def role_limits(self) -> dict[str, RoleLimits]:
        """Limits of each role that task handlers may call."""
        return {role: self.roles.get(role, RoleLimits()) for role in self.inference if role != POLICY_ROLE}

    @property
    def least_seconds(self) -> float:
        """Least seconds of walltime with which an allocation takes a rollout."""
        return self.stages.movable_seconds if self.resume == "auto" else self.stages.budget_seconds

    @property
    def covers_budgets(self) -> bool:
        """Whether the walltime of an allocation covers all budgets of a rollout. If not, rollouts move between allocations."""
        needed = self.stages.budget_seconds + SPARE_SECONDS + STARTUP_SECONDS
        return walltime_seconds(self.allocation.time_limit) >= needed

    @property
    def planned_seconds(self) -> float:
        """Seconds of walltime for which successors are planned: all budgets of a rollout, because some cannot move; or, if the
        walltime is too short for them, those of a rollout that moves."""
        return self.stages.budget_seconds if self.covers_budgets else self.stages.movable_seconds


class StageStatus(StatusModel):
    queued: int = 0
    in_flight: int = 0
    """Number of rollouts that node agents hold in this stage, including rollouts that wait for a stage worker."""
    width: int = 0
    """Stage workers of all ready allocations together."""

    @property
    def busy(self) -> int:
        """Number of busy stage workers."""
        return min(self.in_flight, self.width)

    @property
    def waiting(self) -> int:
        """Number of rollouts that node agents hold and that wait for a stage worker."""
        return self.in_flight - self.busy

    @property
    def text(self) -> str:
        """`8/8 +20`: busy stage workers, all stage workers, and rollouts that wait for a stage worker."""
        return f"{self.busy}/{self.width}" + (f" +{self.waiting}" if self.waiting else "")


class RolloutPoolStatus(PoolStatus):
    stages: dict[str, StageStatus] = {}


class RolloutPool(PoolObject):
    """Pool of node agents that run rollouts in sandboxes."""

    PLURAL: ClassVar[str] = "rolloutpools"
    SINGULAR: ClassVar[str] = "rolloutpool"
    SHORT: ClassVar[tuple[str, ...]] = ("rp",)
    USER_WRITTEN: ClassVar[bool] = True

    kind: Literal["RolloutPool"] = "RolloutPool"
    spec: RolloutPoolSpec
    status: RolloutPoolStatus = RolloutPoolStatus()
