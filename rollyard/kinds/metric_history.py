"""Metrics of pools, endpoints and training steps over time, as `/v1/history` returns them. Fields are snake_case."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.base import WireModel

PoolKind = Literal["RolloutPool", "InferencePool"]

_REPLICAS = ("desired", "requested", "observed", "ready")
POOL_METRICS: dict[PoolKind, tuple[str, ...]] = {
    "RolloutPool": (
        *_REPLICAS, "demand", "queued", "in_flight",
        "init_queued", "init_in_flight", "init_width", "run_queued", "run_in_flight", "run_width",
        "eval_queued", "eval_in_flight", "eval_width", "ended_per_minute",
    ),
    "InferencePool": (
        *_REPLICAS, "demand", "sessions", "running", "waiting", "kv_usage", "prefix_hit_rate", "tokens_per_second",
        "prompt_tokens_per_second", "first_token_seconds",
    ),
}  # fmt: skip
"""Names of a pool's metrics, in the order in which they are stored. A new name comes last.

`demand`: of a RolloutPool the rollouts that are queued or in flight; of an InferencePool the present and requested sessions.
"""
ENDPOINT_METRICS = (
    "ready", "sessions", "running", "waiting", "kv_usage", "prefix_hit_rate", "tokens_per_second",
    "prompt_tokens_per_second", "first_token_seconds",
)  # fmt: skip
"""Names of an endpoint's metrics, as `POOL_METRICS`. `ready` is 1 or 0, so its mean is the share of the time."""

Column = list[float | None]
"""One value for each bucket. Null: nobody knew the value, or the server was down."""


class MetricColumns(WireModel):
    """Metrics of one pool or endpoint, in buckets of equal width."""

    samples: list[int]
    """Number of samples in each bucket; there is one each 10 seconds. 0: the server was down, or the pool was not there."""
    mean: dict[str, Column]
    """Metric -> mean in each bucket."""
    max: dict[str, Column]
    """Metric -> greatest sample in each bucket."""
    weights_version: list[str | None]
    """Last weights version in each bucket. A pool may have several, separated by commas, during an update."""


class Buckets(WireModel):
    """Times of the buckets of an answer."""

    since: int
    """Start of the first bucket (Unix seconds)."""
    until: int
    """End of the last bucket (Unix seconds)."""
    step: int
    """Width of a bucket in seconds. It is greater than was asked for where finer buckets are no longer kept."""
    times: list[int]
    """Start of each bucket (Unix seconds)."""


class PastDecision(WireModel):
    """Change of a pool's desired size."""

    time: float
    """Unix seconds."""
    desired: int
    message: str
    """Sentence with the numbers that led to the decision."""


class PoolHistory(Buckets):
    """Answer of `GET /v1/history/pools/NAMESPACE/NAME`."""

    kind: PoolKind
    namespace: str
    name: str
    metrics: MetricColumns
    decisions: list[PastDecision]
    """Changes of the desired size in this time, oldest first."""


class EndpointHistory(WireModel):
    id: str
    metrics: MetricColumns


class EndpointsHistory(Buckets):
    """Answer of `GET /v1/history/endpoints/NAMESPACE/POOL`."""

    namespace: str
    pool: str
    endpoints: list[EndpointHistory]
    """Endpoints with a sample in this time, by their ids."""
    not_recorded: int
    """Number of the pool's present endpoints that are not recorded, because the pool has too many."""


class TrainingStep(WireModel):
    """One training step: the groups that it uses, and the others that had their verdict in its time. A mean is null if there
    is nothing to average."""

    batch: str
    step: int
    """Number of the step within the series, from 0."""
    began_at: float
    """Time of the first verdict (Unix seconds)."""
    ended_at: float
    """Time of the last verdict so far."""
    groups: int
    """Number of delivered groups."""
    rollouts: int
    """Number of their rollouts with a reward."""
    reward_mean: float | None
    """Mean reward of the delivered groups' rollouts."""
    reward_std: float | None
    """Standard deviation of these rewards."""
    reward_quartiles: list[float] | None = None
    """Least reward, the three quartiles, and greatest reward of the delivered groups' rollouts, rounded to three significant
    digits. Null: not known."""
    group_reward_std: float | None
    """Mean of the standard deviations within each delivered group."""
    judged_reward_mean: float | None
    """Mean reward over all groups with a verdict, also those that the filter held back. It shows the policy, where
    `reward_mean` shows what the filter let pass."""
    judged_rollouts: int
    informative_share: float | None
    """`differing` / `compared`."""
    differing: int = 0
    """Groups whose rewards differ, delivered or not."""
    compared: int = 0
    """Groups with a verdict and at least two rewards, delivered or not."""
    all_low: int
    """Number of groups held back because all rewards were low; `all_high` and `other` likewise."""
    all_high: int
    other: int
    faulty: int
    wasted_tokens: int
    """Sampled tokens of groups that were not delivered."""
    staleness_mean: float | None
    staleness_max: int | None
    tokens_mean: float | None
    """Mean sampled tokens of a rollout in delivered groups; `turns_mean`, `seconds_mean`, `tool_calls_mean` likewise."""
    turns_mean: float | None
    seconds_mean: float | None
    tool_calls_mean: float | None


class BatchHistory(WireModel):
    """Answer of `GET /v1/history/batches/ID`."""

    id: str
    namespace: str
    pool: str
    series: str
    steps: list[TrainingStep]
    """Training steps, oldest first."""
