"""`InferencePool`, one of the two kinds that a user writes: model servers of one policy."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.autoscaling import MAX_REPLICAS, InferenceAutoscaling
from rollyard.kinds.base import Kinded, KindObject
from rollyard.kinds.engine import EngineSpec, ModelSpec, Patience, VllmEngine
from rollyard.kinds.figures import Figures
from rollyard.kinds.pool import PoolStatus, Renewal, gpus_to_count, one_node, one_size, short_name
from rollyard.kinds.weights import WeightsStatus


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
        one_size(self.replicas, self.autoscaling)
        gpus_to_count(self.max_gpu_hours, self.allocation)
        if self.engine.embedded is not None:
            one_node(self.allocation, "the embedded engine")
        if self.engine.vllm is not None:
            _spans(self.allocation, self.engine.vllm)
        return self


def _spans(allocation: AllocationTemplate, engine: VllmEngine) -> None:
    ranks = engine.tensor_parallel_size * engine.pipeline_parallel_size
    if ranks % allocation.nodes:
        raise ValueError(
            f"`engine.vllm.tensorParallelSize` x `engine.vllm.pipelineParallelSize` ({ranks}) must be a multiple of "
            f"`allocation.nodes` ({allocation.nodes}): a replica is spread evenly over its nodes"
        )


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


class InferencePoolStatus(PoolStatus):
    endpoints: list[EndpointStatus] = []
    weights: WeightsStatus = WeightsStatus()
    """Which weights it serves; written by the endpoint that orders an update and by the pool's controller, each on what it has
    read, so that neither overwrites the other."""
    load: Figures = Figures()
    """Of all endpoints together, as old as theirs."""


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
        return short_name(self)
