"""Verdicts on tasks, from the runs of their reference solution, of nothing at all, and of wrong solutions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from rollyard.kinds.base import WireModel
from rollyard.kinds.failure_table import STAGE_TIMEOUT
from rollyard.kinds.rollout import Stage, Status
from rollyard.trajectory import Trajectory

SOLVE, NOTHING = "solve", "nothing"
"""Variants of a check. All other variants are wrong solutions."""
FULL_REWARD = 1.0
ROUNDING = 1e-6
NEAR, OVER = 0.5, 0.8
"""Shares of a stage's time limit. From NEAR on a task is slow: under load the same work takes longer. OVER is the share after
which evaluators stop the agent's work."""
MAX_WHY_CHARS = 300


class TaskVerdict(StrEnum):
    SOUND = "sound"
    """The reference gets 1, nothing gets no reward, no wrong solution gets 1, all runs agree, and none is slow."""
    BROKEN = "broken"
    """The reference does not get 1."""
    FREE = "free"
    """Nothing at all gets a reward, or a wrong solution gets 1."""
    FLAKY = "flaky"
    """Runs of the same work end differently."""
    SLOW = "slow"
    """A stage took at least half of its time limit."""
    NONE = "no-verdict"
    """A run ended without a reward, or there is no reference."""


class CheckedRun(WireModel):
    """One run of a task, as the report shows it."""

    rollout: str
    variant: str
    status: Status
    reward: float | None
    metrics: Mapping[str, float] = {}
    why: str = ""
    """The evaluator's notes, or the error."""
    reason: str = ""
    """Reason of the error; empty if there is none."""
    seconds: dict[Stage, float] = {}
    cut_short: str = ""


def checked_run(variant: str, ended: Trajectory) -> CheckedRun:
    took = {stage: getattr(ended.timings, stage.lower()) for stage in Stage}
    error = ended.error
    return CheckedRun(
        rollout=ended.id,
        variant=variant,
        status=ended.status,
        reward=ended.reward,
        metrics=ended.metrics,
        why=" ".join((error.message if error else "; ".join(ended.notes)).split())[:MAX_WHY_CHARS],
        reason=error.reason if error else "",
        seconds={stage: seconds for stage, seconds in took.items() if seconds is not None},
        cut_short=ended.cut_short or "",
    )


def judge(runs: Sequence[CheckedRun], limits: Mapping[Stage, float]) -> tuple[TaskVerdict, list[str]]:
    """Return the verdict on one task, and all that was found, the reason of the verdict first. `runs`: all runs of the task.
    `limits`: time limits in seconds."""
    over, near = _slow(runs, limits)
    found = [(TaskVerdict.SLOW, over)] if over else []
    for variant in dict.fromkeys(run.variant for run in runs):
        found += _of_variant(variant, [run for run in runs if run.variant == variant])
    if near and not over:
        found.append((TaskVerdict.SLOW, near))
    order = (TaskVerdict.FLAKY, TaskVerdict.BROKEN, TaskVerdict.FREE, TaskVerdict.NONE, TaskVerdict.SLOW)
    found.sort(key=lambda one: -1 if over and one[0] is TaskVerdict.SLOW else order.index(one[0]))
    return (found[0][0] if found else TaskVerdict.SOUND), [why for _, why in found]


def _of_variant(variant: str, runs: Sequence[CheckedRun]) -> list[tuple[TaskVerdict, str]]:
    scored = [run.reward for run in runs if run.reward is not None]
    failed = [run for run in runs if run.status is Status.FAILED]
    unscored = [run for run in runs if run.reward is None and run.reason != STAGE_TIMEOUT.reason]
    name = {SOLVE: "the reference solution", NOTHING: "nothing at all"}.get(variant, f"the wrong solution {variant}")
    if scored and (failed or max(scored) - min(scored) > ROUNDING):
        ends = ", ".join("no reward" if run.reward is None else f"{run.reward:g}" for run in runs)
        worst = min(runs, key=lambda run: float("-inf") if run.reward is None else run.reward)
        return [(TaskVerdict.FLAKY, f"{name} gets {ends}; {_words(worst)}")]
    found = []
    if scored and variant == SOLVE and scored[0] < FULL_REWARD - ROUNDING:
        found.append((TaskVerdict.BROKEN, f"{name} gets {scored[0]:g}; {_words(runs[0])}"))
    least = ROUNDING if variant == NOTHING else FULL_REWARD - ROUNDING
    if scored and variant != SOLVE and scored[0] > least:
        found.append((TaskVerdict.FREE, f"{name} gets {scored[0]:g}; {_words(runs[0])}"))
    if unscored:
        found.append((TaskVerdict.NONE, f"{name} has no reward; {_words(unscored[0])}"))
    return found


def _slow(runs: Sequence[CheckedRun], limits: Mapping[Stage, float]) -> tuple[str, str]:
    """Return why runs were over a time limit, and why they were near one. A wrong solution may be slow."""
    over = near = ""
    for run in (run for run in runs if run.variant in (SOLVE, NOTHING)):
        if run.reason == STAGE_TIMEOUT.reason or run.cut_short:
            over = over or run.cut_short or run.why
        for stage, seconds in run.seconds.items():
            share = seconds / limits[stage]
            told = f"{stage} took {seconds:.3g} s; its limit is {limits[stage]:g} s"
            over = over or (told if share >= OVER else "")
            near = near or (told if share >= NEAR else "")
    return over, near


def _words(run: CheckedRun) -> str:
    return f"{run.reason}: {run.why}" if run.reason else run.why or "without a note"
