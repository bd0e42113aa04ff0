"""Verdicts on tasks, from made runs."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.client.task_report import CheckedTask
from rollyard.client.task_verdict import CheckedRun, TaskVerdict, judge
from rollyard.kinds.rollout import Stage, Status

LIMITS = {Stage.INIT: 100.0, Stage.RUN: 100.0, Stage.EVAL: 100.0}
LATE = {"reward": None, "status": Status.INFRA_FAILED, "reason": "StageTimeout", "why": "EVAL took more than 100 s"}
LOST = {"reward": None, "status": Status.INFRA_FAILED, "reason": "SandboxLost", "why": "the sandbox ended"}
CRASHED = {"reward": None, "status": Status.FAILED, "reason": "HandlerFailed", "why": "KeyError"}


def run(variant: str, reward: float | None = None, **more: Any) -> CheckedRun:
    return CheckedRun(**{"rollout": "r", "variant": variant, "status": Status.COMPLETED, "reward": reward, **more})


def runs(solve: list[Any], nothing: list[Any] = [0, 0, 0], **wrong: list[Any]) -> list[CheckedRun]:  # noqa: B006
    groups = {"solve": solve, "nothing": nothing, **wrong}
    made = [(name, one if isinstance(one, dict) else {"reward": one}) for name, ones in groups.items() for one in ones]
    return [run(name, **fields) for name, fields in made]


@pytest.mark.parametrize(
    ("found", "verdict", "why"),
    [
        (runs([1, 1, 1]), TaskVerdict.SOUND, None),
        (runs([1, 1, 1], lazy=[0.5, 0.5, 0.5]), TaskVerdict.SOUND, None),
        (runs([1, 1, 1], [-1, -1, -1]), TaskVerdict.SOUND, None),
        (runs([0.5, 0.5, 0.5]), TaskVerdict.BROKEN, "the reference solution gets 0.5"),
        (runs([1, 1, 1], [0.1, 0.1, 0.1]), TaskVerdict.FREE, "nothing at all gets 0.1"),
        (runs([1, 1, 1], lazy=[1, 1, 1]), TaskVerdict.FREE, "the wrong solution lazy gets 1"),
        (runs([1, 0, 1]), TaskVerdict.FLAKY, "the reference solution gets 1, 0, 1"),
        (runs([0, 0, 0], [0, 1, 0]), TaskVerdict.FLAKY, "nothing at all gets 0, 1, 0"),
        (runs([1, CRASHED, 1]), TaskVerdict.FLAKY, "gets 1, no reward, 1; HandlerFailed: KeyError"),
        (runs([CRASHED, CRASHED, CRASHED]), TaskVerdict.NONE, "the reference solution has no reward; HandlerFailed"),
        (runs([1, LOST, 1]), TaskVerdict.NONE, "the reference solution has no reward; SandboxLost"),
        (runs([0, LOST, 0]), TaskVerdict.BROKEN, "the reference solution gets 0"),
        (runs([LATE, LATE, LATE]), TaskVerdict.SLOW, "EVAL took more than 100 s"),
        (runs([{"reward": 0, "seconds": {"EVAL": 81}}] * 3), TaskVerdict.SLOW, "EVAL took 81 s; its limit is 100 s"),
        (runs([{"reward": 0, "cut_short": "RUN's budget of 100 s ended"}] * 3), TaskVerdict.SLOW, "RUN's budget"),
        (runs([{"reward": 1, "seconds": {"RUN": 50}}] * 3), TaskVerdict.SLOW, "RUN took 50 s; its limit is 100 s"),
        (runs([{"reward": 0, "seconds": {"RUN": 50}}] * 3), TaskVerdict.BROKEN, "the reference solution gets 0"),
        (runs([1, 1, 1], slow=[{"reward": 0, "seconds": {"RUN": 99}}] * 3), TaskVerdict.SOUND, None),
    ],
)  # fmt: skip
def test_the_verdict_on_a_task(found: list[CheckedRun], verdict: TaskVerdict, why: str | None) -> None:
    given, reasons = judge(found, LIMITS)
    assert given is verdict, reasons
    assert (why in reasons[0]) if why is not None else not reasons


def test_a_report_tells_which_tasks_have_no_control_tests() -> None:
    fields: dict[str, Any] = {
        "task": "t",
        "lines": [1],
        "kind": "swe",
        "pool": "demo",
        "verdict": TaskVerdict.SOUND,
        "why": [],
    }
    for metrics in ({}, {"no_control_tests": 1.0}):
        checked = CheckedTask(**fields, runs=[run("solve", 1.0, metrics=metrics), run("nothing", 0.0)])
        again = CheckedTask.model_validate_json(checked.model_dump_json())
        assert again.without_controls == bool(metrics)
