"""Reward for the cases that passed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.kinds.code_task import CodeTask


def reward_of(code: CodeTask, passed: Sequence[bool]) -> float:
    """`passed`: for each case of the task, whether it passed."""
    if code.credit == "groups":
        failed = {case.group for case, right in zip(code.cases, passed, strict=True) if not right}
        return sum(points for group, points in code.points.items() if group not in failed) / sum(code.points.values())
    return reward_of_share(code, passed)


def reward_of_share(code: CodeTask, passed: Sequence[bool]) -> float:
    """Return the reward of cases or tests without groups."""
    return sum(passed) / len(passed) if code.credit == "cases" else float(all(passed))
