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
    EvaluationRequest,
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
        rest = [_number(one.mean_reward), weights_text(one), request.dataset or "-", as_text(one.created_at)]
        rows.append([request.name, request.pool, one.state.value, *numbers, *rest])
    return align(rows)


def view_lines(view: EvaluationView) -> list[str]:
    request = view.request
    lines = [
        f"evaluation {request.name}: {view.state.value}, {ended_text(view)}",
        f"{tasks_text(request)}, pool {request.pool}, weights {weights_text(view)}",
        counts_text(view),
        *weights_notes(view),
    ]
    rows = [["METRIC", "VALUE", "95 % INTERVAL", "TASKS"]]
    rows += [[name, *estimate_cells(estimate)] for name, estimate in metrics(view)]
    lines += ["", *align(rows)] if len(rows) > 1 else []
    lines += statistics_notes(view)
    if view.by is not None:
        lines += ["", *align(group_rows(view.by, view.groups, request.k))]
    return lines


def ended_text(view: EvaluationSummary) -> str:
    return f"{view.ended} of {view.request.tasks * view.request.k} rollouts ended"


def tasks_text(request: EvaluationRequest) -> str:
    source = f" of {request.dataset}" if request.dataset else ""
    return f"{request.tasks} tasks{source} (sha256 {request.tasks_digest[:12]}…) x {request.k}"


def counts_text(view: EvaluationSummary) -> str:
    repeated = f"; {view.repeated} others did not count and were repeated" if view.repeated else ""
    return f"{view.scored} with a reward, {_faults(view.faults)}{repeated}"


def weights_notes(view: EvaluationSummary) -> list[str]:
    """Return sentences about rollouts that different weights sampled."""
    if view.other_version:
        return [f"{view.other_version} sampled by other weights than {view.request.weights_version}; they do not count"]
    if len(view.weights_versions) > 1:
        shares = ", ".join(f"{version} {count}" for version, count in view.weights_versions.items())
        return [f"sampled by several weights versions: {shares}; --weights V evaluates one of them alone"]
    return []


def metrics(view: EvaluationView) -> list[tuple[str, Estimate]]:
    """Return the metrics that are shown, with their names."""
    found = view.statistics
    named = [("mean reward", found.mean)] if found.mean is not None else []
    named += [(f"pass@{k}", estimate) for k, estimate in found.pass_at.items()]
    return named + [(f"pass^{k}", estimate) for k, estimate in found.pass_all.items() if k > 1]


def statistics_notes(view: EvaluationView) -> list[str]:
    found, k = view.statistics, view.request.k
    notes = []
    if found.tasks_short:
        notes.append(f"{found.tasks_short} tasks have fewer than {k} rewards; pass@k and pass^k need k of them")
    if found.tasks_unscored:
        notes.append(f"{found.tasks_unscored} tasks have no reward; no metric has them")
    return notes


def group_rows(by: str, groups: Sequence[StatisticsGroup], k: int) -> list[list[str]]:
    """Each metric is followed by its interval."""
    metrics = ["MEAN REWARD", "PASS@1", *([f"PASS@{k}", f"PASS^{k}"] if k > 1 else [])]
    rows = [
        [by.upper(), "TASKS", "ROLLOUTS", "FAULTS", *(head for name in metrics for head in (name, "95 % INTERVAL"))]
    ]
    for group in groups:
        found = group.statistics
        shown = [found.mean, found.pass_at.get(1), *((found.pass_at.get(k), found.pass_all.get(k)) if k > 1 else ())]
        counts = [str(group.tasks), str(group.scored), str(group.faults)]
        cells = [text for one in shown for text in (_number(one.value if one else None), _interval(one))]
        rows.append([group.value, *counts, *cells])
    return rows


def task_lines(tasks: Sequence[EvaluatedTask]) -> list[str]:
    """Return a line for each task, the hardest first."""
    rows = [["TASK", "KIND", "MEAN REWARD", "REWARDS", "FAULTS", "METADATA"]]
    rows += [[*task_cells(task), _about(task.metadata)] for task in hardest_first(tasks)]
    return align(rows)


def hardest_first(tasks: Sequence[EvaluatedTask]) -> list[EvaluatedTask]:
    """Sort by the mean reward. Tasks without a reward come first."""
    return sorted(tasks, key=lambda one: (_mean(one.rewards) is not None, _mean(one.rewards), one.task))


def task_cells(task: EvaluatedTask) -> list[str]:
    """Return digest, kind, mean reward, rewards and faults."""
    return [
        task.task,
        task.kind,
        _number(_mean(task.rewards)),
        rewards_text(task.rewards),
        _reasons(task.faults) or "-",
    ]


def comparison_lines(found: EvaluationComparison, most: int | None) -> list[str]:
    """`most`: greatest number of changed tasks of each sort; None for all."""
    lines = [
        f"{found.first} and {found.second}: {found.tasks} tasks with a reward in both; {found.only_first} in the first alone, "
        f"{found.only_second} in the second alone",
        *(f"note: {note}" for note in found.notes),
    ]
    if found.mean is not None and found.pass_1 is not None:
        rows = [["METRIC", "FIRST", "SECOND", "DIFFERENCE", "95 % INTERVAL", "P"]]
        rows += [["mean reward", *difference_cells(found.mean)], ["pass@1", *difference_cells(found.pass_1)]]
        lines += ["", *align(rows)]
        lines += [f"{name}: {one.conclusion}" for name, one in (("mean reward", found.mean), ("pass@1", found.pass_1))]
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
    shown = [rewards_text(change.first), rewards_text(change.second), f"{change.difference:+.3f}"]
    return [word, change.task, change.kind, *shown, _about(change.metadata)]


def difference_cells(found: Difference) -> list[str]:
    """Return first, second, difference, interval and p."""
    interval = f"{found.low:+.3f} … {found.high:+.3f}"
    return [_number(found.first), _number(found.second), f"{found.difference:+.3f}", interval, f"{found.p_value:.3g}"]


def estimate_cells(estimate: Estimate) -> list[str]:
    return [_number(estimate.value), _interval(estimate), str(estimate.tasks)]


def _interval(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.low:.3f} … {estimate.high:.3f}"


def weights_text(found: EvaluationSummary) -> str:
    return found.request.weights_version or ",".join(found.weights_versions) or "-"


def _faults(faults: Mapping[str, int]) -> str:
    return f"{sum(faults.values())} faults" + (f" ({_reasons(faults)})" if faults else "")


def _reasons(faults: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in faults.items())


def rewards_text(rewards: Sequence[float]) -> str:
    return " ".join(f"{reward:.3g}" for reward in rewards) or "-"


def _mean(rewards: Sequence[float]) -> float | None:
    return sum(rewards) / len(rewards) if rewards else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def metadata_text(metadata: Mapping[str, object]) -> str:
    return json.dumps(metadata, ensure_ascii=False) if metadata else "-"


def _about(metadata: Mapping[str, object]) -> str:
    text = metadata_text(metadata)
    return text if len(text) <= ABOUT_CHARS else f"{text[: ABOUT_CHARS - 1]}…"
