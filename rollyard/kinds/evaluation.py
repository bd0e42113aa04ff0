"""Evaluations: k rollouts of each task of a set, and what they come to. The fields are snake_case, as those of rollouts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from pydantic import Field, JsonValue

from rollyard.kinds.base import NAME_PATTERN, WireModel, shared
from rollyard.kinds.rollout import ID_PATTERN, AgentSpec, Budgets, Sampling
from rollyard.kinds.task import Task
from rollyard.kinds.weights import Version

EVALUATED = "eval"
"""Mode of the rollouts of evaluations, and the variant in their ids."""
FULL_REWARD, ROUNDING = 1.0, 1e-6
EvaluationName = Annotated[str, Field(pattern=ID_PATTERN, max_length=80)]
"""Name of an evaluation. The ids of its rollouts begin with it."""


class EvaluationKey(NamedTuple):
    """Namespace and name of one evaluation."""

    namespace: str
    name: str


class EvaluationRequest(WireModel):
    """Body of `POST /v1/evaluations`. It never changes. The rollouts are submitted by the client."""

    name: EvaluationName
    """Name of the evaluation, and of the group of its rollouts. A request with the name and the body of an existing
    evaluation attaches to that evaluation. With the same name and another body the answer is a 409."""
    pool: str = Field(pattern=NAME_PATTERN)
    """RolloutPool that runs the rollouts."""
    dataset: str = Field(default="", max_length=4096)
    """Name of the dataset, or of the file, that the tasks come from."""
    tasks: int = Field(ge=1, le=10_000_000)
    """Number of different tasks."""
    tasks_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    """sha256 of the digests of the tasks, in the order of the digests."""
    k: int = Field(default=1, ge=1, le=1024)
    """Number of rollouts of each task."""
    weights_version: Version | None = None
    """The only version of the policy's weights that may sample the rollouts. Null: whatever the pool serves."""
    sampling: Sampling = shared(Sampling())
    agent: AgentSpec = shared(AgentSpec())
    budgets: Budgets = shared(Budgets())

    def rollout_fields(self) -> dict[str, Any]:
        """Return the fields of the RolloutRequests, beside id, pool, task and group. If a version is given, a rollout begins
        again when the pool's weights change, so no trajectory has tokens of two versions."""
        fields: dict[str, Any] = {
            "mode": EVALUATED,
            "sampling": self.sampling,
            "agent": self.agent,
            "budgets": self.budgets,
        }
        if self.weights_version is not None:
            fields |= {"min_weights_version": self.weights_version, "max_staleness": 0}
        return fields


def tasks_digest(tasks: Iterable[Task]) -> str:
    """Return the digest of a set of tasks. The order of the tasks does not matter."""
    return hashlib.sha256("\n".join(sorted(task.digest for task in tasks)).encode()).hexdigest()


class RunPlace(NamedTuple):
    """Place of a rollout in its evaluation."""

    run: str
    """Id of the first rollout of a run. A run is one of the k of a task."""
    repeat: int
    """Number of rollouts of this run before this one. Each of them ended without counting."""

    @classmethod
    def of(cls, rollout: str) -> RunPlace:
        """Read a rollout's id: NAME.TASK.eval.NUMBER, or NAME.TASK.eval.NUMBER.REPEAT."""
        before, _, last = rollout.rpartition(".")
        return cls(before, int(last)) if re.search(r"\.[0-9]+$", before) and last.isdecimal() else cls(rollout, 0)

    @property
    def id(self) -> str:
        return f"{self.run}.{self.repeat}" if self.repeat else self.run


class EvaluationState(StrEnum):
    RUNNING = "Running"
    """Some of the rollouts have not ended, or are not submitted yet."""
    COMPLETED = "Completed"
    """All rollouts have ended."""


class Estimate(WireModel):
    """Mean over tasks, with its 95 % interval."""

    value: float
    low: float
    high: float
    tasks: int
    """Number of tasks in the mean."""


class EvaluationStatistics(WireModel):
    """Statistics over the rollouts with a reward. Each task counts the same."""

    mean: Estimate | None
    """Mean reward. Null if no rollout has a reward."""
    pass_at: dict[int, Estimate]
    """k -> pass@k: the probability that at least one of k rollouts solves the task."""
    pass_all: dict[int, Estimate]
    """k -> pass^k: the probability that each of k rollouts solves the task."""
    tasks_short: int
    """Tasks with fewer than k rollouts with a reward, but at least one."""
    tasks_unscored: int
    """Tasks without any."""


class StatisticsGroup(WireModel):
    """Statistics of the tasks that have one value of a field."""

    value: str
    tasks: int
    scored: int
    faults: int
    statistics: EvaluationStatistics


class EvaluationSummary(WireModel):
    """Evaluation in a list."""

    request: EvaluationRequest
    namespace: str
    created_at: float
    """Unix seconds."""
    state: EvaluationState
    ended_at: float | None
    """Time at which the last rollout ended; null while the evaluation is running."""
    ended: int
    """Rollouts that have ended, without those that are repeated."""
    scored: int
    """Rollouts with a reward. The statistics are about these."""
    faults: dict[str, int]
    """Reason -> rollouts that ended without a reward. They are in no mean."""
    other_version: int
    """Rollouts that another version than `weights_version` sampled, wholly or in part. They are in no mean."""
    repeated: int = 0
    """Rollouts that ended without counting, and in whose places other rollouts are."""
    weights_versions: dict[str, int]
    """Weights version -> rollouts that it sampled. Versions that sampled a rollout together are one key, with commas."""
    mean_reward: float | None
    """Mean over the tasks' mean rewards."""


class EvaluationView(EvaluationSummary):
    """Answer of `GET /v1/evaluations/NAME`."""

    solved_at: float
    """Least reward of a solved task."""
    statistics: EvaluationStatistics
    by: str | None = None
    groups: list[StatisticsGroup] = []


class EvaluatedTask(WireModel):
    """Results of one task."""

    task: str
    """Digest of the task."""
    kind: str
    metadata: dict[str, JsonValue] = {}
    rewards: list[float]
    """Rewards of the rollouts that count, in the order of their ids."""
    faults: dict[str, int] = {}
    other_version: int = 0
    rollouts: list[str]
    """Ids of the rollouts that have ended, without those that are repeated."""
    repeated: list[str] = []
    """Ids of the rollouts in whose places other rollouts are."""


class EvaluatedTasks(WireModel):
    """Answer of `GET /v1/evaluations/NAME/tasks`."""

    tasks: list[EvaluatedTask]


class Difference(WireModel):
    """Difference between two evaluations in one metric, over the tasks of both: the second minus the first."""

    first: float
    second: float
    difference: float
    low: float
    high: float
    """95 % interval of the difference: paired bootstrap over tasks."""
    p_value: float
    """Two-sided p-value of the paired permutation test over tasks (random signs of the differences)."""
    conclusion: str = ""
    """Verdict of p on which of the two is better."""


class TaskChange(WireModel):
    """Task whose mean reward differs between two evaluations."""

    task: str
    kind: str
    metadata: dict[str, JsonValue]
    first: list[float]
    second: list[float]
    difference: float


class EvaluationComparison(WireModel):
    """Answer of `GET /v1/evaluations/NAME/comparison?with=OTHER`."""

    first: str
    second: str
    tasks: int
    """Tasks with a reward in both. Only these are compared."""
    only_first: int
    only_second: int
    """Tasks with a reward in one of the two alone."""
    notes: list[str]
    """Settings that differ between the two."""
    solved_at: float
    mean: Difference | None
    """Difference of the mean reward; null if no task is in both."""
    pass_1: Difference | None
    better: list[TaskChange]
    """Tasks with a higher mean reward in the second evaluation, the greatest difference first."""
    worse: list[TaskChange]
    same: int
