"""Evaluations and their comparisons as lines of text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rollyard.cli.output import align
from rollyard.core.clock import as_text
from rollyard.kinds.evaluation import (
    Difference,
    Estimate,
    EvaluatedTask,
    EvaluationComparison,
    EvaluationSummary,
    EvaluationView,
    StatisticsGroup,
    TaskChange,
)

ABOUT_CHARS = 60


def list_lines(found: Sequence[EvaluationSummary]) -> list[str]:
    rows = [["NAME", "POOL", "STATE", "TASKS", "K", "ENDED", "FAULTS", "MEAN REWARD", "WEIGHTS", "DATASET", "STARTED"]]
    for one in found:
        request = one.request
        ended = f"{one.ended}/{request.tasks * request.k}"
        numbers = [str(request.tasks), str(request.k), ended, str(sum(one.faults.values()))]
        rest = [_number(one.mean_reward), _weights(one), request.dataset or "-", as_text(one.created_at)]
        rows.append([request.name, request.pool, one.state.value, *numbers, *rest])
    return align(rows)


def view_lines(view: EvaluationView) -> list[str]:
    request, total = view.request, view.request.tasks * view.request.k
    source = f" of {request.dataset}" if request.dataset else ""
    lines = [
        f"evaluation {request.name}: {view.state.value}, {view.ended} of {total} rollouts ended",
        f"{request.tasks} tasks{source} (sha256 {request.tasks_digest[:12]}…) x {request.k}, pool {request.pool}, "
        f"weights {_weights(view)}",
        f"{view.scored} with a reward, {_faults(view.faults)}{_repeated(view)}",
    ]
    if view.other_version:
        lines.append(f"{view.other_version} sampled by other weights than {request.weights_version}; they do not count")
    elif len(view.weights_versions) > 1:
        shares = ", ".join(f"{version} {count}" for version, count in view.weights_versions.items())
        lines.append(f"sampled by several weights versions: {shares}; --weights V evaluates one of them alone")
    rows = [["METRIC", "VALUE", "95 % INTERVAL", "TASKS"]]
    rows += [[name, *_cells(estimate)] for name, estimate in _metrics(view)]
    lines += ["", *align(rows)] if len(rows) > 1 else []
    lines += _notes(view)
    if view.by is not None:
        lines += ["", *align(_group_rows(view.by, view.groups, request.k))]
    return lines


def _metrics(view: EvaluationView) -> list[tuple[str, Estimate]]:
    found = view.statistics
    metrics = [("mean reward", found.mean)] if found.mean is not None else []
    metrics += [(f"pass@{k}", estimate) for k, estimate in found.pass_at.items()]
    return metrics + [(f"pass^{k}", estimate) for k, estimate in found.pass_all.items() if k > 1]


def _notes(view: EvaluationView) -> list[str]:
    found, k = view.statistics, view.request.k
    notes = []
    if found.tasks_short:
        notes.append(f"{found.tasks_short} tasks have fewer than {k} rewards; pass@k and pass^k need k of them")
    if found.tasks_unscored:
        notes.append(f"{found.tasks_unscored} tasks have no reward; no metric has them")
    return notes


def _group_rows(by: str, groups: Sequence[StatisticsGroup], k: int) -> list[list[str]]:
    several = [f"PASS@{k}", f"PASS^{k}"] if k > 1 else []
    rows = [[by.upper(), "TASKS", "ROLLOUTS", "FAULTS", "MEAN REWARD", "95 % INTERVAL", "PASS@1", *several]]
    for group in groups:
        found = group.statistics
        rates = [found.pass_at.get(1), *((found.pass_at.get(k), found.pass_all.get(k)) if k > 1 else ())]
        mean = found.mean
        cells = [_number(mean.value if mean else None), _interval(mean)]
        counts = [str(group.tasks), str(group.scored), str(group.faults)]
        rows.append([group.value, *counts, *cells, *(_number(rate.value if rate else None) for rate in rates)])
    return rows


def task_lines(tasks: Sequence[EvaluatedTask]) -> list[str]:
    """Return a line for each task, the hardest first."""
    rows = [["TASK", "KIND", "MEAN REWARD", "REWARDS", "FAULTS", "METADATA"]]
    for task in sorted(tasks, key=lambda one: (_mean(one.rewards) is not None, _mean(one.rewards), one.task)):
        faults = _reasons(task.faults) or "-"
        rows.append(
            [task.task, task.kind, _number(_mean(task.rewards)), _rewards(task.rewards), faults, _about(task.metadata)]
        )
    return align(rows)


def comparison_lines(found: EvaluationComparison, most: int | None) -> list[str]:
    """`most`: greatest number of changed tasks of each sort; None for all."""
    lines = [
        f"{found.first} and {found.second}: {found.tasks} tasks with a reward in both; {found.only_first} in the first alone, "
        f"{found.only_second} in the second alone",
        *(f"note: {note}" for note in found.notes),
    ]
    if found.mean is not None and found.pass_1 is not None:
        rows = [["METRIC", "FIRST", "SECOND", "DIFFERENCE", "95 % INTERVAL", "P"]]
        rows += [["mean reward", *_difference(found.mean)], ["pass@1", *_difference(found.pass_1)]]
        lines += ["", *align(rows)]
    lines.append(f"{len(found.better)} tasks are better in the second, {len(found.worse)} worse, {found.same} the same")
    rows = [["CHANGE", "TASK", "KIND", "FIRST", "SECOND", "DIFFERENCE", "METADATA"]]
    for word, changes in (("better", found.better), ("worse", found.worse)):
        rows += [_change(word, change) for change in changes[:most]]
    if len(rows) > 1:
        lines += ["", *align(rows)]
    if most is not None and (left := sum(max(0, len(one) - most) for one in (found.better, found.worse))):
        lines.append(f"… and {left} more; --all shows them")
    return lines


def _change(word: str, change: TaskChange) -> list[str]:
    shown = [_rewards(change.first), _rewards(change.second), f"{change.difference:+.3f}"]
    return [word, change.task, change.kind, *shown, _about(change.metadata)]


def _difference(found: Difference) -> list[str]:
    interval = f"{found.low:+.3f} … {found.high:+.3f}"
    return [_number(found.first), _number(found.second), f"{found.difference:+.3f}", interval, f"{found.p_value:.2g}"]


def _cells(estimate: Estimate) -> list[str]:
    return [_number(estimate.value), _interval(estimate), str(estimate.tasks)]


def _interval(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.low:.3f} … {estimate.high:.3f}"


def _weights(found: EvaluationSummary) -> str:
    return found.request.weights_version or ",".join(found.weights_versions) or "-"


def _faults(faults: Mapping[str, int]) -> str:
    return f"{sum(faults.values())} faults" + (f" ({_reasons(faults)})" if faults else "")


def _repeated(view: EvaluationSummary) -> str:
    return f"; {view.repeated} others did not count and were repeated" if view.repeated else ""


def _reasons(faults: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in faults.items())


def _rewards(rewards: Sequence[float]) -> str:
    return " ".join(f"{reward:.3g}" for reward in rewards) or "-"


def _mean(rewards: Sequence[float]) -> float | None:
    return sum(rewards) / len(rewards) if rewards else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _about(metadata: Mapping[str, object]) -> str:
    text = json.dumps(metadata, ensure_ascii=False) if metadata else "-"
    return text if len(text) <= ABOUT_CHARS else f"{text[: ABOUT_CHARS - 1]}…"
