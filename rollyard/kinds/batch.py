"""Batches for trainers: a step's worth of informative groups, or a stream of them. snake_case, like rollouts.

A batch draws tasks, runs `n` rollouts of each (a group), and hands out the groups that its filter lets pass.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from rollyard.kinds.base import NAME_PATTERN, WireModel
from rollyard.kinds.rollout import ID_PATTERN, AgentSpec, Budgets, RolloutRequest, Sampling, Task, Trajectory
from rollyard.kinds.weights import VERSION_PATTERN

MAX_TASKS = 100_000
"""Tasks in one request; a dataset may have more."""
BatchName = Annotated[str, Field(pattern=ID_PATTERN, max_length=100)]
"""Name of a batch, a series or a dataset: short enough for the ids of its groups and rollouts."""


class BatchKey(NamedTuple):
    """Name of one batch."""

    namespace: str
    id: str


class BatchStatus(StrEnum):
    """Status of a batch. Every status but `Running` is terminal."""

    RUNNING = "Running"
    COMPLETED = "Completed"
    EXHAUSTED = "Exhausted"
    EXPIRED = "Expired"
    CANCELLED = "Cancelled"

    @property
    def terminal(self) -> bool:
        return self is not BatchStatus.RUNNING


class DatasetRef(WireModel):
    """Uploaded dataset to draw from."""

    name: BatchName
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    """Seed of the order in which tasks are drawn; each epoch has another order."""


class SourceRef(WireModel):
    """Task source plug-in to draw from."""

    name: str = Field(min_length=1, max_length=64)
    """Name of the entry point in the group `rollyard.sources`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the plug-in's factory."""


class BatchFilter(WireModel):
    """Rule by which a group is informative. Only rollouts with a reward count."""

    kind: Literal["nonuniform", "none"] = "nonuniform"
    """nonuniform: at least two rewards differ. none: the other rules alone decide."""
    min_mean: float | None = Field(default=None, allow_inf_nan=False)
    """Least mean reward."""
    max_mean: float | None = Field(default=None, allow_inf_nan=False)
    """Greatest mean reward."""
    min_usable: int | None = Field(default=None, ge=1, le=1024)
    """Fewest rollouts with a reward. A group with fewer is faulty: it is neither informative nor uninformative, and its
    task is drawn again. Default: 2, or 1 where `n` is 1."""
    reward_range: tuple[float, float] | None = None
    """Least and greatest possible reward. With it a group whose mean can no longer be within the bounds ends early."""

    @property
    def lets_all_pass(self) -> bool:
        """Whether every group with enough rewards is informative."""
        return self.kind == "none" and self.min_mean is None and self.max_mean is None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_mean is not None and self.max_mean is not None and self.min_mean > self.max_mean:
            raise ValueError(f"`min_mean` must be at most `max_mean` ({self.max_mean:g})")
        if (bounds := self.reward_range) is not None and not (
            math.isfinite(bounds[0]) and math.isfinite(bounds[1]) and bounds[0] < bounds[1]
        ):
            raise ValueError("`reward_range` must be two finite numbers, the least reward first, such as [0, 1]")
        return self


class BatchRequest(WireModel):
    """Body of POST /v1/batches."""

    id: BatchName | None = None
    """Id chosen by the caller. A repeated id with the same body attaches to the existing batch; with another body it is
    a 409."""
    pool: str = Field(pattern=NAME_PATTERN)
    """RolloutPool that runs the rollouts."""
    n: int = Field(default=8, ge=1, le=1024)
    """Rollouts of each task."""
    target: int | None = Field(default=None, ge=1, le=1_000_000)
    """Informative groups to deliver. Null: a stream, which goes on until its source ends or it is cancelled."""
    tasks: list[Task] | None = Field(default=None, min_length=1, max_length=MAX_TASKS)
    """Tasks to draw from, in this order. Exactly one of `tasks`, `dataset` and `source` is given."""
    dataset: DatasetRef | None = None
    """Dataset to draw from, shuffled by its seed."""
    source: SourceRef | None = None
    """Task source plug-in to draw from."""
    series: BatchName | None = None
    """Batches of one series share the position in the source, unfinished groups and observed rates. Default: the name of
    the dataset, or else the batch's id."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes of the series over its tasks. Default: 1 for tasks in the request, no limit for a dataset."""
    filter: BatchFilter = BatchFilter()
    """Rule by which a group is informative, and is delivered."""
    in_flight: int | None = Field(default=None, ge=1, le=100_000)
    """Most groups at once that are not whole. Default: as many as the pool's RUN stage and the target need."""
    carry_over: Literal["keep", "cancel"] = "keep"
    """keep: unfinished groups, finished rollouts included, are first in line for the next batch of the series."""
    deadline_seconds: float | None = Field(default=None, gt=0)
    """Time after which the batch ends Expired; what is unfinished is carried over."""
    step_groups: int | None = Field(default=None, ge=1)
    """Stream: groups that one training step takes. Needed for `max_staleness`."""
    max_staleness: int = Field(default=1, ge=0, le=1000)
    """Stream: training steps by which drawing may run ahead of acknowledged training. 0: a step is drawn only after the
    step before it was acknowledged."""
    pass_over: bool = True
    """Whether tasks that were uninformative several times in a row are drawn less often."""
    longest_first: bool = True
    """Whether tasks whose earlier rollouts took longest go first among those drawn together."""
    agent: AgentSpec = AgentSpec()
    sampling: Sampling = Sampling()
    budgets: Budgets = Budgets()
    priority: int = Field(default=0, ge=-100, le=100)
    """Priority of the rollouts in the queue; a higher number starts first."""
    mode: Literal["train", "eval"] = "train"
    """Free data of the caller, stored with each trajectory."""
    min_weights_version: str | None = Field(default=None, pattern=VERSION_PATTERN, max_length=64)
    """Oldest version of the policy's weights that may sample its rollouts."""
    group_version: Literal["any", "same"] = "any"
    """same: one version samples all rollouts of a group."""
    rollout_max_staleness: int | None = Field(default=None, ge=0)
    """Most versions by which the pool may be ahead of the version that a rollout started with. Beyond, it restarts."""

    @field_validator("source")
    @classmethod
    def _storable(cls, source: SourceRef | None) -> SourceRef | None:
        if source is not None and len(source.model_dump_json()) > 64 << 10:
            raise ValueError("`source.options` may have at most 64 KiB; put large data into a file and pass its path")
        return source

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [name for name in ("tasks", "dataset", "source") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of `tasks`, `dataset` and `source`")
        if self.min_usable > self.n:
            raise ValueError(f"`filter.min_usable` must be at most `n` ({self.n})")
        if self.filter.kind == "nonuniform" and self.n == 1:
            raise ValueError('one reward never differs: set `n` to 2 or more, or `filter.kind` to "none"')
        if self.target is not None and self.step_groups is not None:
            raise ValueError("`step_groups` is for streams; leave out `target`, or `step_groups`")
        return self

    @property
    def min_usable(self) -> int:
        """Fewest rollouts with a reward in a group that counts."""
        return self.filter.min_usable or min(2, self.n)

    @property
    def own_series(self) -> bool:
        """Whether no other batch can take over what it leaves unfinished."""
        return self.series is None and self.dataset is None

    @property
    def bounded_by_acknowledgement(self) -> bool:
        """Whether it is a stream that waits for its trainer; a list of tasks without `step_groups` is run as a whole."""
        return self.target is None and (self.step_groups is not None or self.tasks is None)

    def rollouts(self, group: str, task: Task) -> RolloutRequest:
        """Request for the rollouts of one group."""
        return RolloutRequest(
            id=group if self.n > 1 else f"{group}.0",
            pool=self.pool,
            task=task,
            n=self.n,
            group=group,
            agent=self.agent,
            sampling=self.sampling,
            budgets=self.budgets,
            priority=self.priority,
            mode=self.mode,
            min_weights_version=self.min_weights_version,
            group_version=self.group_version,
            max_staleness=self.rollout_max_staleness,
        )


class Acknowledgement(WireModel):
    """Body of POST /v1/batches/ID/acknowledge."""

    upto: int = Field(ge=0)
    """Last delivery that the trainer has used, with all before it."""


class FilteredGroups(WireModel):
    """Groups that were not informative, by cause."""

    all_low: int = 0
    """All rewards equal and not above 0 (or at the lower end of `reward_range`), or the mean below `min_mean`."""
    all_high: int = 0
    """All rewards equal and above 0 (or at the upper end of `reward_range`), or the mean above `max_mean`."""
    other: int = 0


class DeliveryBias(WireModel):
    """Mean of the delivered rollouts over that of all rollouts in whole informative groups. 1.00: nothing is preferred."""

    tokens: float | None = None
    turns: float | None = None
    seconds: float | None = None


class BatchView(WireModel):
    """Batch without its groups."""

    id: str
    namespace: str
    pool: str
    series: str
    status: BatchStatus
    target: int | None
    n: int
    informative: int
    """Groups known to be informative, delivered ones included."""
    delivered: int
    acknowledged: int
    drawn: int
    """Groups drawn by this batch."""
    filtered: FilteredGroups
    faulty: int
    """Groups with too few rewards, because rollouts ended Failed, InfraFailed or Cancelled."""
    in_flight: int
    """Groups that are not whole."""
    whole_waiting: int
    """Delivered groups that are not acknowledged."""
    carried_in: int
    """Groups taken over from earlier batches of the series."""
    passed_over: int
    """Tasks that were not drawn because they were uninformative several times in a row."""
    drained: bool
    """Whether the source has no more tasks for this batch."""
    wasted_tokens: int
    """Sampled tokens in groups that were filtered, faulty or cancelled."""
    informative_rate: float
    """Estimated share of informative groups, from which over-provisioning is computed."""
    seconds_to_target: float | None
    staleness_mean: float | None
    """Mean training steps between the draw of a delivered group and the step that it is for; null before the first."""
    bias: DeliveryBias
    """Bias of this batch."""
    series_bias: DeliveryBias
    """Bias of all batches of its series so far."""
    waiting: str | None
    """Reason why nothing moves, as a sentence; null while it moves."""
    created_at: float
    ended_at: float | None

    @property
    def all_delivered(self) -> bool:
        """Whether no further group will be delivered."""
        return self.status.terminal or (self.drained and self.in_flight == 0)


class DatasetView(WireModel):
    """Uploaded dataset."""

    name: str
    namespace: str
    digest: str
    """sha256 over its canonical lines."""
    tasks: int
    """Number of tasks."""
    kinds: list[str]
    """Kinds of its tasks."""
    created_at: float


class Group(WireModel):
    """Delivered group: the n rollouts of one task, by sample index."""

    delivery: int
    """Position among the batch's groups, from 1. Pass the last one as `after` to get the next."""
    id: str
    task_index: int
    """Index of the task in its source."""
    drawn_at: float
    rollouts: list[Trajectory]
    """All n rollouts. Those that ended Failed, InfraFailed or Cancelled have `reward: null`."""

    @property
    def rewards(self) -> list[float | None]:
        return [rollout.reward for rollout in self.rollouts]


class GroupPage(WireModel):
    """Answer of GET /v1/batches/ID/groups."""

    groups: list[Group]
    next: int
    """Value of `after` for the next page."""
    batch: BatchView

    @property
    def last(self) -> bool:
        """Whether no group will ever follow."""
        return self.next >= self.batch.delivered and self.batch.all_delivered
