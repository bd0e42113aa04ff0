"""Evaluations as people and programs see them, from their results. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from rollyard.kinds import task_metadata
from rollyard.kinds.evaluation import (
    Difference,
    Estimate,
    EvaluatedTask,
    EvaluationComparison,
    EvaluationRequest,
    EvaluationState,
    EvaluationStatistics,
    EvaluationSummary,
    EvaluationView,
    StatisticsGroup,
    TaskChange,
)
from rollyard.server.evaluations.statistics import (
    EQUAL,
    SIGNIFICANT,
    PairedTest,
    TaskMeans,
    compare,
    mean_reward,
    numbers_of_k,
    pass_all_k,
    pass_at_k,
    pass_rate,
    solved,
)
from rollyard.store.evaluation_store import EvaluationResult, EvaluationTally, StoredEvaluation, metadata_of

KIND = "kind"
"""Field of a task by which statistics are grouped, beside the names of its metadata."""
NO_VALUE = "(none)"
VALUE_CHARS = 60
"""Greatest length of a value in a note."""
MAX_GROUPS = 200
"""Greatest number of groups in a view; the rest is one more group."""


def evaluated_tasks(request: EvaluationRequest, results: Sequence[EvaluationResult]) -> list[EvaluatedTask]:
    """Return the results task by task. `results`: in order of the tasks."""
    return [_task(request, list(found)) for _, found in groupby(results, key=lambda result: result.task)]


def _task(request: EvaluationRequest, results: Sequence[EvaluationResult]) -> EvaluatedTask:
    rewards, faults, others = list[float](), Counter[str](), 0
    present = [result for result in results if not result.repeated]
    for result in present:
        if result.reward is None:
            faults[result.reason or result.status.value] += 1
        elif _is_of_other_version(request, result):
            others += 1
        else:
            rewards.append(result.reward)
    return EvaluatedTask(
        task=results[0].task,
        kind=results[0].kind,
        metadata=metadata_of(results[0]),
        rewards=rewards,
        faults=dict(faults.most_common()),
        other_version=others,
        rollouts=[result.rollout for result in present],
        repeated=[result.rollout for result in results if result.repeated],
    )


def _is_of_other_version(request: EvaluationRequest, result: EvaluationResult) -> bool:
    return request.weights_version is not None and result.weights_version != request.weights_version


def summary(stored: StoredEvaluation, tally: EvaluationTally) -> EvaluationSummary:
    return EvaluationSummary(**_summary_fields(stored, tally))


def view(
    stored: StoredEvaluation,
    tally: EvaluationTally,
    results: Sequence[EvaluationResult],
    solved_at: float,
    by: str | None,
) -> EvaluationView:
    """Return an evaluation with its statistics. `by`: also those of each kind of task, or of each value of this name in the
    tasks' metadata."""
    tasks, k = evaluated_tasks(stored.request, results), stored.request.k
    unseen = stored.request.tasks - len(tasks)
    return EvaluationView(
        **_summary_fields(stored, tally),
        solved_at=solved_at,
        statistics=_statistics(tasks, k, solved_at, unseen),
        by=by,
        groups=[_group(value, found, k, solved_at) for value, found in _grouped(tasks, by)] if by else [],
    )


def _summary_fields(stored: StoredEvaluation, tally: EvaluationTally) -> dict[str, Any]:
    completed = tally.is_complete(stored.request)
    return {
        "request": stored.request,
        "namespace": stored.namespace,
        "created_at": stored.created_at,
        "state": EvaluationState.COMPLETED if completed else EvaluationState.RUNNING,
        "ended_at": tally.last_finished_at if completed else None,
        "ended": tally.ended,
        "scored": tally.scored,
        "faults": tally.faults,
        "other_version": tally.other_version,
        "repeated": tally.repeated,
        "weights_versions": tally.weights_versions,
        "mean_reward": tally.mean_reward,
    }


def _statistics(tasks: Sequence[EvaluatedTask], k: int, solved_at: float, unseen: int = 0) -> EvaluationStatistics:
    """`unseen`: number of further tasks of which no rollout has ended."""
    rewards = [task.rewards for task in tasks]

    def rates(estimator: Callable[[int, int, int], float]) -> dict[int, Estimate]:
        found = ((number, pass_rate(rewards, number, solved_at, estimator)) for number in numbers_of_k(k))
        return {number: _estimate(means) for number, means in found if means is not None}

    mean = mean_reward(rewards)
    return EvaluationStatistics(
        mean=_estimate(mean) if mean is not None else None,
        pass_at=rates(pass_at_k),
        pass_all=rates(pass_all_k),
        tasks_short=sum(0 < len(one) < k for one in rewards),
        tasks_unscored=sum(not one for one in rewards) + unseen,
    )


def _estimate(means: TaskMeans) -> Estimate:
    return Estimate(value=means.value, low=means.interval.low, high=means.interval.high, tasks=means.tasks)


def _grouped(tasks: Iterable[EvaluatedTask], by: str) -> list[tuple[str, list[EvaluatedTask]]]:
    """Return the tasks by their value of a field, the most tasks first."""
    found: defaultdict[str, list[EvaluatedTask]] = defaultdict(list)
    for task in tasks:
        found[task.kind if by == KIND else _value(task, by)].append(task)
    ordered = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    if rest := [task for _, more in ordered[MAX_GROUPS:] for task in more]:
        ordered = [*ordered[:MAX_GROUPS], (f"({len(ordered) - MAX_GROUPS} others)", rest)]
    return ordered


def _value(task: EvaluatedTask, name: str) -> str:
    if name not in task.metadata:
        return NO_VALUE
    item = task_metadata.item(name, task.metadata[name])
    return item.partition("=")[2] if item is not None else json.dumps(task.metadata[name])


def _group(value: str, tasks: Sequence[EvaluatedTask], k: int, solved_at: float) -> StatisticsGroup:
    return StatisticsGroup(
        value=value,
        tasks=len(tasks),
        scored=sum(len(task.rewards) for task in tasks),
        faults=sum(sum(task.faults.values()) for task in tasks),
        statistics=_statistics(tasks, k, solved_at),
    )


def comparison(
    first: tuple[StoredEvaluation, Sequence[EvaluationResult]],
    second: tuple[StoredEvaluation, Sequence[EvaluationResult]],
    solved_at: float,
) -> EvaluationComparison:
    """Compare two evaluations over the tasks that have a reward in both."""
    before, after = (
        {task.task: task for task in evaluated_tasks(stored.request, results) if task.rewards}
        for stored, results in (first, second)
    )
    pairs = [(before[task], after[task]) for task in before.keys() & after.keys()]
    pairs.sort(key=lambda pair: pair[0].task)
    changes = sorted((_change(*pair) for pair in pairs), key=lambda change: -change.difference)
    better = [change for change in changes if change.difference > EQUAL]
    worse = [change for change in reversed(changes) if change.difference < -EQUAL]
    names = (first[0].request.name, second[0].request.name)
    return EvaluationComparison(
        first=names[0],
        second=names[1],
        tasks=len(pairs),
        only_first=len(before) - len(pairs),
        only_second=len(after) - len(pairs),
        notes=[*_notes(first[0].request, second[0].request), *_same_weights(first[1], second[1])],
        solved_at=solved_at,
        mean=_difference(names, _columns(pairs, _mean)),
        pass_1=_difference(names, _columns(pairs, lambda task: solved(task.rewards, solved_at) / len(task.rewards))),
        better=better,
        worse=worse,
        same=len(pairs) - len(better) - len(worse),
    )


def _mean(task: EvaluatedTask) -> float:
    return sum(task.rewards) / len(task.rewards)


def _columns(
    pairs: Sequence[tuple[EvaluatedTask, EvaluatedTask]], value: Callable[[EvaluatedTask], float]
) -> tuple[list[float], list[float]]:
    return [value(one) for one, _ in pairs], [value(other) for _, other in pairs]


def _difference(names: tuple[str, str], values: tuple[list[float], list[float]]) -> Difference | None:
    found = compare(*values)
    if found is None:
        return None
    first, second, difference, interval, p_value = found
    return Difference(
        first=first,
        second=second,
        difference=difference,
        low=interval.low,
        high=interval.high,
        p_value=p_value,
        conclusion=_conclusion(names, values, found),
    )


def _conclusion(names: tuple[str, str], values: tuple[list[float], list[float]], found: PairedTest) -> str:
    """Return what the test says: p decides, not the interval, which is too narrow for few tasks."""
    if not any(abs(one - other) > EQUAL for one, other in zip(*values, strict=True)):
        return f"no task differs; of {len(values[0])} tasks, that does not show that none would"
    if found.p_value < SIGNIFICANT:
        return f"{names[found.difference > 0]} is better: p is below {SIGNIFICANT}"
    apart = ", although the interval does not contain 0" if found.interval.low * found.interval.high > 0 else ""
    return f"not shown which is better: chance can explain the difference, for p is not below {SIGNIFICANT}{apart}"


def _change(first: EvaluatedTask, second: EvaluatedTask) -> TaskChange:
    return TaskChange(
        task=first.task,
        kind=first.kind,
        metadata=first.metadata,
        first=first.rewards,
        second=second.rewards,
        difference=_mean(second) - _mean(first),
    )


def _notes(first: EvaluationRequest, second: EvaluationRequest) -> list[str]:
    """Return sentences about settings that differ. The weights should differ, so they are left out."""
    notes = []
    if first.tasks_digest != second.tasks_digest:
        notes.append("the two have different sets of tasks")
    for name in ("k", "pool", "sampling", "agent", "budgets"):
        one, other = getattr(first, name), getattr(second, name)
        if isinstance(one, int | str):
            notes += [_differ(name, one, other)] if one != other else []
            continue
        for field in type(one).model_fields:
            if (value := getattr(one, field)) != (another := getattr(other, field)):
                notes.append(_differ(f"{name}.{field}", value, another))
    return notes


def _differ(name: str, one: object, other: object) -> str:
    shown = [text if len(text) <= VALUE_CHARS else f"{text[: VALUE_CHARS - 1]}…" for text in map(_text, (one, other))]
    return f"the two have different values of `{name}`: {shown[0]} and {shown[1]}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _same_weights(first: Sequence[EvaluationResult], second: Sequence[EvaluationResult]) -> list[str]:
    """Return a sentence if one set of weights sampled both, whatever the names of the two say."""
    versions = {
        one.weights_version
        for results in (first, second)
        for one in results
        if one.reward is not None and not one.repeated
    }
    version = versions.pop() if len(versions) == 1 else None
    return [f"the same weights sampled both: {version}"] if version is not None else []
