"""Present state of pools for the API's `top`. The state comes from the server's memory and is not stored."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.base import API_VERSION, StatusModel
from rollyard.kinds.endpoint_metrics import EndpointMetrics
from rollyard.kinds.inference_pool import EndpointStatus
from rollyard.kinds.pool import Replicas
from rollyard.kinds.rollout_pool import StageStatus


class PoolTop(StatusModel):
    namespace: str
    name: str
    replicas: Replicas
    reason: str
    """Reason of the condition Ready; while it is True, also the conditions that report trouble:
    `AllReady,ImagesReady=False`."""


class InferencePoolTop(PoolTop):
    sessions: int
    """Number of live sessions on the pool's endpoints: of rollouts and of external agents."""
    weights_versions: list[str]
    """Versions that the ready endpoints serve. During a weights update the list may have several."""
    load: EndpointMetrics
    """Metrics of all endpoints together."""
    endpoints: list[EndpointStatus]


class SandboxTop(StatusModel):
    """Numbers of sandboxes of the connected node agents, since each one's start."""

    ready: int = 0
    """Warm sandboxes that wait for a rollout now."""
    warm: int = 0
    """Sandboxes that rollouts got and that were warm."""
    cold: int = 0
    """Sandboxes that were started when a rollout needed them."""
    unused: int = 0
    """Warm sandboxes that ended without a rollout."""
    kept: int = 0
    """Sandboxes of failed attempts that are kept now."""


class RolloutPoolTop(PoolTop):
    stages: dict[str, StageStatus]
    sandboxes: SandboxTop = SandboxTop()
    ended_per_minute: dict[str, float] | None = None
    """Recent rate of ended rollouts: status -> rollouts per minute. Null just after the start of the server."""


class TopView(StatusModel):
    """Answer of `.../namespaces/NAMESPACE/top`, or of `.../top` for all namespaces."""

    api_version: str = API_VERSION
    kind: Literal["Top"] = "Top"
    inference_pools: list[InferencePoolTop] = []
    rollout_pools: list[RolloutPoolTop] = []
