"""What goes on right now, as the API's `top` says it: from memory, stored nowhere."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.base import API_VERSION, Observed
from rollyard.kinds.figures import Figures
from rollyard.kinds.inference_pool import EndpointStatus
from rollyard.kinds.pool import Replicas
from rollyard.kinds.rollout_pool import StageStatus


class PoolTop(Observed):
    namespace: str
    name: str
    replicas: Replicas
    reason: str
    """Why it is ready, or why not; in one word."""


class InferencePoolTop(PoolTop):
    sessions: int
    """Live rollouts on its endpoints."""
    weights_versions: list[str]
    """Those that its ready endpoints serve; more than one while weights are being changed."""
    load: Figures
    """Of all endpoints together."""
    endpoints: list[EndpointStatus]


class RolloutPoolTop(PoolTop):
    stages: dict[str, StageStatus]
    ended_per_minute: dict[str, float] | None = None
    """Rollouts by terminal status, over the last minute; null just after the server's start."""


class Top(Observed):
    """The answer of `.../namespaces/NAMESPACE/top`, or of `.../top` for all namespaces."""

    api_version: str = API_VERSION
    kind: Literal["Top"] = "Top"
    inference_pools: list[InferencePoolTop] = []
    rollout_pools: list[RolloutPoolTop] = []
