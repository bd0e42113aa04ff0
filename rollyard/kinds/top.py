"""Present state of pools for the API's `top`. The state comes from the server's memory and is not stored."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.base import API_VERSION, StatusModel, WireModel
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


class ImageStorageTop(StatusModel):
    """Space of the images in the caches of a pool's nodes. The other pools' images on these nodes count too."""

    images: int = 0
    layers: int = 0
    """Unpacked layers of these images. A layer of several images of a node counts once."""
    bytes: int = 0
    """Bytes of these layers."""
    unshared_bytes: int = 0
    """Bytes that the images would take if none shared a layer."""
    evicted_layers: int = 0
    """Layers that the connected node agents have deleted since their start, because a cache was full."""
    evicted_bytes: int = 0


class SavedWorkTop(StatusModel):
    """Bytes that the server keeps so that rollouts in RUN can go on elsewhere."""

    turns: int = 0
    snapshots: int = 0


class RolloutPoolTop(PoolTop):
    stages: dict[str, StageStatus]
    sandboxes: SandboxTop = SandboxTop()
    images: ImageStorageTop = ImageStorageTop()
    saved: SavedWorkTop = SavedWorkTop()
    ended_per_minute: dict[str, float] | None = None
    """Recent rate of ended rollouts: status -> rollouts per minute. Null just after the start of the server."""


class NodeTop(WireModel):
    """Rollouts that ended on one node since a time."""

    node: str
    rollouts: int
    faults: dict[str, int]
    """Reason -> rollouts whose last attempt ended here without a reward."""
    init_median: float | None
    """Median seconds of INIT."""
    run_median: float | None


class NodesTop(WireModel):
    """Answer of `GET /v1/nodes`, the slowest INIT first."""

    since: float
    nodes: list[NodeTop]


class MissingImageView(WireModel):
    """Sandbox image that a pool's nodes cannot have now. Its rollouts wait. Each pool has its own failures and times."""

    namespace: str
    pool: str
    image: str
    message: str
    """Sentence of the last failure."""
    permanent: bool
    """Whether somebody must change the image or the pool."""
    failures: int
    """Failures in a row."""
    since: float
    """Time of the first of them (Unix seconds)."""
    until: float
    """Time before which no rollout tries the image again (Unix seconds)."""
    waiting: int = 0
    """Number of queued rollouts that need the image."""
    next_try: str = ""
    """When the image is tried again, as the end of a sentence: `now`, `at TIME`, `when a rollout needs it`."""


class TopView(StatusModel):
    """Answer of `.../namespaces/NAMESPACE/top`, or of `.../top` for all namespaces."""

    api_version: str = API_VERSION
    kind: Literal["Top"] = "Top"
    inference_pools: list[InferencePoolTop] = []
    rollout_pools: list[RolloutPoolTop] = []
