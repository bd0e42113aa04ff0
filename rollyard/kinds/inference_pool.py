"""`InferencePool`, one of the two kinds that a user writes: model servers of one policy."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.autoscaling import MAX_REPLICAS, InferenceAutoscaling
from rollyard.kinds.base import KindModel
from rollyard.kinds.endpoint_metrics import EndpointMetrics
from rollyard.kinds.engine_spec import EngineSpec, ModelSpec, Patience, VllmEngine
from rollyard.kinds.pool import PoolObject, PoolStatus, Renewal, check_gpus_counted, check_one_node, check_one_size
from rollyard.kinds.weights import WeightsStatus


class InferencePoolSpec(KindModel):
    model: ModelSpec
    """Model that the pool serves."""
    engine: EngineSpec
    """Engine that serves the model."""
    patience: Patience = Patience()
    """Time for which a rollout waits for an endpoint before the rollout continues at another endpoint."""
    replicas: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    """Fixed number of allocations. Set this or `autoscaling`."""
    autoscaling: InferenceAutoscaling | None = None
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
    renewal: Renewal = Renewal()
    """Replacement of allocations before their walltime ends."""

    @model_validator(mode="after")
    def _consistent(self) -> InferencePoolSpec:
        if self.engine.external is not None:
            given = (self.replicas, self.autoscaling, self.max_gpu_hours)
            if any(value is not None for value in given):
                raise ValueError(
                    "an external engine is started by others; leave out `replicas`, `autoscaling` and `maxGpuHours`"
                )
            return self
        check_one_size(self.replicas, self.autoscaling)
        check_gpus_counted(self.max_gpu_hours, self.allocation)
        if self.engine.embedded is not None:
            check_one_node(self.allocation, "the embedded engine")
        if self.engine.vllm is not None:
            _nodes_of(self.allocation, self.engine.vllm)
        return self


def _nodes_of(allocation: AllocationTemplate, engine: VllmEngine) -> None:
    ranks = engine.tensor_parallel_size * engine.pipeline_parallel_size
    if ranks % allocation.nodes:
        raise ValueError(
            f"`engine.vllm.tensorParallelSize` x `engine.vllm.pipelineParallelSize` ({ranks}) must be a multiple of "
            f"`allocation.nodes` ({allocation.nodes}): a replica is spread evenly over its nodes"
        )


class EndpointStatus(EndpointMetrics):
    """State of one endpoint. The metrics are up to 30 seconds old; `rollyard top` shows the present metrics."""

    id: str
    url: str
    sessions: int = 0
    """Number of live sessions on the endpoint: of rollouts and of external agents."""
    weights_version: str = ""
    ready: bool = False
    reason: str = ""
    """Reason why the endpoint is not ready."""
    capacity: float = 1
    """Weight in load balancing between the endpoints of the pool."""
    draining: bool = False
    """True: the endpoint gets no new rollouts, and its rollouts move to other endpoints with their next turn."""
    max_sessions: int | None = None
    """Greatest number of sessions that the endpoint may have at present; null for no limit."""
    full: str = ""
    """Reason why the endpoint has the limit `maxSessions`."""


class InferencePoolStatus(PoolStatus):
    endpoints: list[EndpointStatus] = []
    weights: WeightsStatus = WeightsStatus()
    """Weights that the pool serves. The API and the pool's reconciler write this field. A write is refused if the pool
    has changed since the writer read it."""
    load: EndpointMetrics = EndpointMetrics()
    """Metrics of all endpoints together, up to 30 seconds old."""


class InferencePool(PoolObject):
    """Pool of model servers that serve one policy."""

    PLURAL: ClassVar[str] = "inferencepools"
    SINGULAR: ClassVar[str] = "inferencepool"
    SHORT: ClassVar[tuple[str, ...]] = ("ip",)
    USER_WRITTEN: ClassVar[bool] = True

    kind: Literal["InferencePool"] = "InferencePool"
    spec: InferencePoolSpec
    status: InferencePoolStatus = InferencePoolStatus()
