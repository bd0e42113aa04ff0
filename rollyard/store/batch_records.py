"""Durable state of batches: batches, their groups, series, datasets, and the history of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import pstdev
from typing import NamedTuple

from rollyard.kinds.batch import BatchKey, BatchStatus
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Status

REWARD_DIGITS = 3
"""Significant digits of the rewards that are counted for quartiles, so that a step without an end has not too many."""


class GroupKey(NamedTuple):
    """Name of one group of a batch."""

    namespace: str
    id: str


class SeriesKey(NamedTuple):
    """Name of one series of batches."""

    namespace: str
    name: str


class GroupState(StrEnum):
    """State of a group. Groups in the states `Open` and `Informative` are live: they can still be delivered."""

    OPEN = "Open"
    INFORMATIVE = "Informative"
    DELIVERED = "Delivered"
    UNINFORMATIVE = "Uninformative"
    FAULTY = "Faulty"
    CANCELLED = "Cancelled"

    @property
    def live(self) -> bool:
        return self in (GroupState.OPEN, GroupState.INFORMATIVE)


@dataclass(frozen=True, slots=True)
class EndedRollout:
    """A terminal rollout of a group."""

    sample: int
    status: Status
    reward: float | None
    tokens: int
    turns: int
    seconds: float
    tool_calls: int = 0


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group: the n rollouts of one task. These rollouts have the group's id in their field `group`."""

    namespace: str
    id: str
    series: str
    number: int
    """Number of the group within the series, from 0. The ids of the group's rollouts contain this number. If a rollout
    with one of these ids exists already, the number is skipped."""
    pool: str
    n: int
    task_index: int
    epoch: int
    drawn_at: float
    drawn_step: int
    """Number of training steps of the series before the draw."""
    batch: str | None
    """Batch to which the group belongs; None if the group was carried over and waits for the next batch of the series."""
    state: GroupState = GroupState.OPEN
    delivery: int | None = None
    """Sequence number of the delivery within the batch, from 1; None if the group is not delivered."""
    ended: tuple[EndedRollout, ...] = ()
    tries: int = 0
    """Number of earlier faulty groups of this task in this epoch."""
    staleness: int | None = None
    """Number of training steps between the draw and the step that uses the delivered group."""

    @property
    def key(self) -> GroupKey:
        return GroupKey(self.namespace, self.id)

    @property
    def all_ended(self) -> bool:
        """Whether all rollouts of the group have ended."""
        return len(self.ended) == self.n

    @property
    def tokens(self) -> int:
        return sum(rollout.tokens for rollout in self.ended)


@dataclass(frozen=True, slots=True)
class LengthSums:
    """Sums of the lengths of rollouts with a reward."""

    rollouts: float = 0.0
    tokens: float = 0.0
    turns: float = 0.0
    seconds: float = 0.0

    def plus(self, ended: Sequence[EndedRollout]) -> LengthSums:
        scored = [r for r in ended if r.status.scored]
        return LengthSums(
            self.rollouts + len(scored),
            self.tokens + sum(r.tokens for r in scored),
            self.turns + sum(r.turns for r in scored),
            self.seconds + sum(r.seconds for r in scored),
        )

    def __add__(self, other: LengthSums) -> LengthSums:
        return LengthSums(
            self.rollouts + other.rollouts,
            self.tokens + other.tokens,
            self.turns + other.turns,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch's request and counters. Only `advance` and `settlement` in `server.batches` change the counters."""

    namespace: str
    id: str
    digest: str
    """sha256 of the canonical request. It shows whether two request bodies are equal."""
    request: str
    """The accepted `BatchRequest` as JSON, with only the first of its tasks. All tasks are in `dataset_tasks`."""
    pool: str
    series: str
    created_at: float
    seq: int = 0
    """Order of arrival; the store sets it at the first put."""
    status: BatchStatus = BatchStatus.RUNNING
    ended_at: float | None = None
    engine_priority: bool = False
    """Whether the pool's engines take requests in order of their priority."""
    slots: int = 0
    """Number of this batch's rollouts that the pool can run at the same time; 0 if no node agent is connected."""
    step: int = 0
    """Number of training steps of the series before this batch."""
    settled: float = 0.0
    """Number of informative and uninformative groups, of this batch and of earlier batches of the series. Older groups
    count less."""
    settled_informative: float = 0.0
    queue_rank: float = 0.0
    """Rank of the batch's last rollout in the pool's queue."""
    open: int = 0
    """Number of groups without a verdict."""
    informative: int = 0
    """Number of live groups whose verdict is informative."""
    compared: int = 0
    """Number of groups with a verdict that have at least two rewards. A group that the filter lets pass is counted when it
    is delivered."""
    differing: int = 0
    """Number of these groups whose rewards differ."""
    unfinished: int = 0
    """Number of rollouts that have not ended, in live groups."""
    delivered: int = 0
    acknowledged: int = 0
    drawn: int = 0
    carried_in: int = 0
    passed_over: int = 0
    all_low: int = 0
    all_high: int = 0
    other: int = 0
    faulty: int = 0
    faulty_in_a_row: int = 0
    wasted_tokens: int = 0
    drained: bool = False
    staleness: int = 0
    """Sum of the staleness of delivered groups: training steps between draw and use."""
    whole_lengths: LengthSums = LengthSums()
    """Lengths of the rollouts in all informative groups, delivered or not. When a live group is discarded, an estimate
    is added: the expected lengths of the group's rollouts times the probability that the group is informative
    (`server.batches.discarded_lengths`)."""
    delivered_lengths: LengthSums = LengthSums()

    @property
    def key(self) -> BatchKey:
        return BatchKey(self.namespace, self.id)

    @property
    def pool_key(self) -> PoolKey:
        return PoolKey(self.namespace, self.pool)

    @property
    def in_flight(self) -> int:
        return self.open + self.informative


@dataclass(frozen=True, slots=True)
class RewardSums:
    """Sums over groups with a verdict, and over their rollouts with a reward."""

    groups: int = 0
    rollouts: int = 0
    rewards: float = 0.0
    squares: float = 0.0
    spreads: float = 0.0
    """Sum of the groups' standard deviations of the reward."""
    tokens: int = 0
    turns: int = 0
    seconds: float = 0.0
    tool_calls: int = 0
    counts: tuple[tuple[float, int], ...] = ()
    """Rewards and how often each occurred, in ascending order. A reward is rounded to REWARD_DIGITS significant digits."""

    def plus(self, ended: Sequence[EndedRollout]) -> RewardSums:
        scored = [r for r in ended if r.status.scored]
        rewards = [r.reward for r in scored if r.reward is not None]
        return RewardSums(
            self.groups + 1,
            self.rollouts + len(rewards),
            self.rewards + sum(rewards),
            self.squares + sum(reward * reward for reward in rewards),
            self.spreads + (pstdev(rewards) if rewards else 0.0),
            self.tokens + sum(r.tokens for r in scored),
            self.turns + sum(r.turns for r in scored),
            self.seconds + sum(r.seconds for r in scored),
            self.tool_calls + sum(r.tool_calls for r in scored),
            _counted(self.counts, rewards),
        )


def _counted(counts: Sequence[tuple[float, int]], rewards: Sequence[float]) -> tuple[tuple[float, int], ...]:
    found = Counter(dict(counts))
    found.update(float(f"{reward:.{REWARD_DIGITS}g}") for reward in rewards)
    return tuple(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Sums of one training step. A delivered group belongs to the step that uses it, any other group to the step for
    which deliveries were collected at its verdict. `settlement` writes the record with the groups it counts, so each
    group is counted once."""

    namespace: str
    series: str
    step: int
    """Number of the step within the series."""
    batch: str
    began_at: float
    """Time of the first verdict (Unix seconds)."""
    ended_at: float
    """Time of the last verdict so far."""
    used: RewardSums = RewardSums()
    """Delivered groups."""
    unused: RewardSums = RewardSums()
    """Groups that were not delivered, without those that were cancelled."""
    all_low: int = 0
    all_high: int = 0
    other: int = 0
    faulty: int = 0
    wasted_tokens: int = 0
    compared: int = 0
    differing: int = 0
    staleness: int = 0
    """Sum over the delivered groups."""
    most_stale: int = 0


@dataclass(frozen=True, slots=True)
class PutBack:
    """Task of a faulty group. The task will be drawn again."""

    index: int
    epoch: int
    tries: int
    """Number of faulty groups of this task in this epoch."""
    due: int
    """The task may be drawn again for the group with this `number` or a higher one. After the last epoch the task may
    be drawn again immediately."""


@dataclass(frozen=True, slots=True)
class SeriesRecord:
    """State that the batches of a series share: the source of tasks, the position in it, and statistics."""

    namespace: str
    name: str
    digest: str
    """Digest of the series' tasks."""
    dataset: str | None
    """Name of the dataset from which tasks are drawn; None for another source."""
    seed: int | None
    """Seed of the order in which tasks are drawn; None for the order of the source."""
    tasks: int | None
    """Number of tasks; None as long as the end of a plug-in's tasks has not been reached."""
    epoch: int = 0
    position: int = 0
    next_number: int = 0
    """`number` of the group that is drawn next."""
    put_back: tuple[PutBack, ...] = ()
    step: int = 0
    """Number of training steps in the ended batches of the series. Each ended batch counts as at least one step."""
    settled: float = 0.0
    settled_informative: float = 0.0
    passed_over: int = 0
    whole_lengths: LengthSums = LengthSums()
    delivered_lengths: LengthSums = LengthSums()

    @property
    def key(self) -> SeriesKey:
        return SeriesKey(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """Earlier informative and uninformative groups of one task of a dataset."""

    groups: int = 0
    informative: int = 0
    streak: int = 0
    """Number of uninformative groups in a row, counted back from the last group."""
    rollouts: int = 0
    """Number of rollouts with a reward."""
    seconds: float = 0.0
    """Mean seconds of a rollout with a reward."""
    tokens: float = 0.0
    """Mean sampled tokens of a rollout with a reward. This mean and `seconds` are moving means: when the rollouts of a
    new group are added, the old mean has the weight of at most `task_history.MEAN_ROLLOUTS` rollouts."""


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """An uploaded dataset. Its tasks are stored under `digest`; other datasets and series may use the same tasks."""

    namespace: str
    name: str
    digest: str
    tasks: int
    kinds: tuple[str, ...]
    """Task kinds of the dataset, each once."""
    created_at: float
