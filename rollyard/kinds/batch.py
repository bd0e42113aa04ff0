"""Batches for trainers: informative groups for one training step, or a stream of such groups. Fields are snake_case.

A batch draws tasks, runs `n` rollouts of each task (a group), and delivers the groups that are informative.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from rollyard.kinds.base import NAME_PATTERN, WireModel, shared
from rollyard.kinds.rollout import ID_PATTERN, AgentSpec, Budgets, RolloutRequest, Sampling
from rollyard.kinds.task import Task
from rollyard.kinds.weights import VERSION_PATTERN

MAX_TASKS = 100_000
"""Greatest number of tasks in one request. A dataset may have more."""
BatchName = Annotated[str, Field(pattern=ID_PATTERN, max_length=100)]
"""Name of a batch, a series or a dataset. The name is short, because the ids of groups and rollouts begin with it."""


class BatchKey(NamedTuple):
    """Namespace and id of one batch."""

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
    """Uploaded dataset from which tasks are drawn."""

    name: BatchName
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    """Seed of the order in which tasks are drawn. The order differs in each epoch."""


class SourceRef(WireModel):
    """Plug-in from which tasks are drawn."""

    name: str = Field(min_length=1, max_length=64)
    """Name of the entry point in the group `rollyard.sources`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the plug-in's factory."""


class BatchFilter(WireModel):
    """Rule that decides whether a group is informative. Rollouts without a reward are ignored."""

    kind: Literal["nonuniform", "none"] = "nonuniform"
    """nonuniform: at least two rewards must differ. none: only the other fields decide."""
    min_mean: float | None = Field(default=None, allow_inf_nan=False)
    """Least mean reward."""
    max_mean: float | None = Field(default=None, allow_inf_nan=False)
    """Greatest mean reward."""
    min_usable: int | None = Field(default=None, ge=1, le=1024)
    """A group needs this many rollouts with a reward. A group with fewer is faulty: it is neither informative nor
    uninformative, and its task is drawn again. Default: 2, or 1 if `n` is 1."""
    reward_range: tuple[float, float] | None = None
    """Least and greatest possible reward. If this range is given, a group ends as soon as no further rewards can bring
    the group's mean between `min_mean` and `max_mean`."""

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
    """Id chosen by the caller. A request with the id and the body of an existing batch attaches to that batch. With the
    same id and another body the answer is a 409."""
    pool: str = Field(pattern=NAME_PATTERN)
    """RolloutPool that runs the rollouts."""
    n: int = Field(default=8, ge=1, le=1024)
    """Number of rollouts of each task."""
    target: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of informative groups to deliver. Null: the batch is a stream. A stream ends when no tasks are left, at
    its deadline, or when somebody cancels the stream."""
    tasks: list[Task] | None = Field(default=None, min_length=1, max_length=MAX_TASKS)
    """Tasks to draw, in this order. Exactly one of `tasks`, `dataset` and `source` must be given."""
    dataset: DatasetRef | None = None
    """Dataset from which tasks are drawn, in an order that the seed determines."""
    source: SourceRef | None = None
    """Plug-in from which tasks are drawn."""
    series: BatchName | None = None
    """Name of the series. Batches of one series share the position in the source, unfinished groups, and the observed
    share of informative groups. Default: the name of the dataset, else the batch's id."""
    epochs: int | None = Field(default=None, ge=1)
    """Number of times that the series goes through its tasks. Default: no limit for a dataset, 1 for other tasks."""
    filter: BatchFilter = BatchFilter()
    """Rule that decides whether a group is informative. Informative groups are delivered."""
    in_flight: int | None = Field(default=None, ge=1, le=100_000)
    """Greatest number of groups in flight at the same time. Default: the server chooses the number. It draws as many
    groups as the target or the training step probably still needs, and more if workers of the pool are idle."""
    carry_over: Literal["keep", "cancel"] = "keep"
    """keep: the next batch of the series begins with this batch's unfinished groups and their finished rollouts. cancel:
    unfinished groups are cancelled."""
    deadline_seconds: float | None = Field(default=None, gt=0)
    """Seconds after which the batch ends Expired. `carry_over` decides what happens to unfinished groups."""
    step_groups: int | None = Field(default=None, ge=1)
    """Stream: number of groups that one training step uses. `max_staleness` has an effect only with this field."""
    max_staleness: int = Field(default=2, ge=0, le=1000)
    """Stream: groups may be drawn for the first training step that is not acknowledged, and for this many steps after
    this step. 0: groups for a step are drawn only after the previous step was acknowledged."""
    pass_over: bool = True
    """Whether a task of a dataset is drawn less often after uninformative groups: the more in a row, the less often."""
    longest_first: bool = True
    """Whether tasks that are drawn together start in the order of the duration of their earlier rollouts, longest
    first."""
    agent: AgentSpec = shared(AgentSpec())
    sampling: Sampling = shared(Sampling())
    budgets: Budgets = shared(Budgets())
    priority: int = Field(default=0, ge=-100, le=100)
    """Priority of the rollouts in the queue; a higher number starts first."""
    weight: float = Field(default=1.0, ge=0.01, le=100.0)
    """Share of the pool's workers, relative to the weights of the other running batches. All rollouts without a batch
    together have the weight 1. The weight has an effect only among rollouts of the same `priority`."""
    mode: Literal["train", "eval"] = "train"
    """Label for the caller's own use, stored with each trajectory."""
    min_weights_version: str | None = Field(default=None, pattern=VERSION_PATTERN, max_length=64)
    """Oldest version of the policy's weights that may sample the batch's rollouts."""
    group_version: Literal["any", "same"] = "any"
    """same: one version of the weights samples all rollouts of a group."""
    rollout_max_staleness: int | None = Field(default=None, ge=0)
    """A rollout restarts if the pool's weights are more than this many versions newer than the version with which the
    rollout started."""

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
        if not self.agent.calls_model:
            raise ValueError("a batch trains a policy: `agent.type` must be loop or command")
        if self.agent.fork_from is not None:
            raise ValueError("`agent.fork_from` is for single rollouts; submit them by `POST /v1/rollouts`")
        if self.min_usable > self.n:
            raise ValueError(f"`filter.min_usable` must be at most `n` ({self.n})")
        if self.filter.kind == "nonuniform" and self.n == 1:
            raise ValueError('one reward never differs: set `n` to 2 or more, or `filter.kind` to "none"')
        if self.target is not None and self.step_groups is not None:
            raise ValueError("`step_groups` is for streams; leave out `target`, or `step_groups`")
        return self

    @property
    def min_usable(self) -> int:
        """Least number of rollouts with a reward in a group that is not faulty."""
        return self.filter.min_usable or min(2, self.n)

    @property
    def own_series(self) -> bool:
        """Whether the series has only this batch, so that no later batch can take over unfinished groups."""
        return self.series is None and self.dataset is None

    @property
    def bounded_by_acknowledgement(self) -> bool:
        """Whether the batch is a stream that waits for acknowledgements. A stream whose tasks are listed in the request
        waits only if `step_groups` is set."""
        return self.target is None and (self.step_groups is not None or self.tasks is None)

    def rollouts(self, group: str, task: Task) -> RolloutRequest:
        """Build the request for the rollouts of one group."""
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
    """The `delivery` of the last group that the trainer has used. All earlier groups are acknowledged too."""


class FilteredGroups(WireModel):
    """Groups that the filter did not let pass, by cause."""

    all_low: int = 0
    """Groups whose rewards are all equal and at most 0 (or at the lower end of `reward_range`), or whose mean is below
    `min_mean`."""
    all_high: int = 0
    """Groups whose rewards are all equal and above 0 (or at the upper end of `reward_range`), or whose mean is above
    `max_mean`."""
    other: int = 0

    @property
    def total(self) -> int:
        return self.all_low + self.all_high + self.other


class DeliveryBias(WireModel):
    """Mean length of delivered rollouts, divided by the mean length of rollouts in all informative groups. The second
    mean includes discarded groups, with estimated lengths. 1.00: no bias."""

    tokens: float | None = None
    turns: float | None = None
    seconds: float | None = None


class BatchView(WireModel):
    """Batch without its groups."""

    id: str
    namespace: str
    pool: str
    series: str
    dataset: str | None
    """Dataset from which the batch draws."""
    status: BatchStatus
    target: int | None
    n: int
    passed: int
    """Number of groups that the filter let pass. They are delivered, or will be when all of their rollouts have ended."""
    delivered: int
    acknowledged: int
    drawn: int
    """Number of groups that this batch has drawn."""
    filtered: FilteredGroups
    faulty: int
    """Number of groups with too few rewards, because rollouts ended Failed, InfraFailed or Cancelled."""
    in_flight: int
    """Number of groups with at least one rollout that has not ended."""
    unacknowledged: int
    """Number of delivered groups that are not acknowledged."""
    carried_in: int
    """Number of groups taken over from earlier batches of the series."""
    passed_over: int
    """Number of times that a task was passed over because the task's last group was uninformative."""
    drained: bool
    """Whether the source has no more tasks for this batch."""
    delivered_tokens: int
    """Number of sampled tokens in delivered groups."""
    wasted_tokens: int
    """Number of sampled tokens in groups that were filtered, faulty or cancelled."""
    informative_share: float | None
    """Share of groups whose rewards differ, among the groups with a verdict and at least two rewards; null before the first.
    A group that the filter lets pass is counted when it is delivered."""
    estimated_pass_rate: float
    """Estimate of the share of groups that the filter lets pass, from this batch and earlier ones of the series; 0.5 before
    the first verdict. The number of groups drawn beyond the target depends on this estimate."""
    seconds_to_target: float | None
    staleness_mean: float | None
    """Mean number of training steps between the draw of a delivered group and the step that uses this group; null before
    the first delivery."""
    bias: DeliveryBias
    """Bias in this batch."""
    series_bias: DeliveryBias
    """Bias in all batches of the series so far."""
    waiting: str | None
    """Reason why there is no progress, as a sentence; null while there is progress."""
    created_at: float
    ended_at: float | None
    reward_mean: float | None = None
    """Mean reward of the rollouts in groups with a verdict, delivered or not; null before the first such group."""

    @property
    def all_delivered(self) -> bool:
        """Whether no further group will be delivered."""
        return self.status.terminal or (self.drained and self.in_flight == 0)


class DatasetHistory(WireModel):
    """Earlier groups of a dataset's tasks."""

    tasks: int
    """Number of tasks that have had at least one informative or uninformative group. Faulty groups are not counted."""
    informative: int
    """Number of tasks whose last group was informative."""
    streaks: dict[int, int]
    """Number of uninformative groups in a row -> number of tasks that have this number at present."""


class DatasetView(WireModel):
    """Uploaded dataset."""

    name: str
    namespace: str
    digest: str
    """sha256 over the lines of the dataset in canonical form."""
    tasks: int
    """Number of tasks."""
    kinds: list[str]
    """Kinds of the dataset's tasks."""
    created_at: float
    history: DatasetHistory | None = None
    """History of the dataset's tasks; null in lists."""
