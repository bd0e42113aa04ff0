"""Comparison of a rollout with the same tool calls made in-process, where no process can be killed."""

from __future__ import annotations

import re

from examples.tiny_policy.offline import CHECK, WRITE, Toolbox
from rollyard.tasks.math import last_boxed
from rollyard.trajectory import Trajectory

_INSIDE = re.compile(r"/workspace/[\w.]+")


def assert_no_fault(trajectory: Trajectory) -> None:
    """Assert that a tool call that succeeds in-process has the same result, and that right work has the reward 1.

    The comparison ends at the first call that only a real sandbox understands.
    """
    box = Toolbox()
    for turn in trajectory.turns:
        for call, result in zip(turn.tool_calls, turn.tool_results, strict=False):
            if call["name"] == "editor":
                return  # it may have changed a file
            if call["name"] != ("bash" if trajectory.task.kind == "code" else "ipython"):
                continue  # refused, because the task does not offer it
            expected = _replay(box, call["arguments"])
            if expected is None:
                return  # what it changed in the sandbox is not known, so no later result can be compared
            if not expected.startswith(("Traceback", "  ")) and "[exit code" not in expected:
                assert result == expected, (trajectory.id, call, result)
    if _is_right(trajectory, box):
        assert trajectory.reward == 1.0, (trajectory.id, trajectory.metrics, trajectory.turns)


def _replay(box: Toolbox, arguments: dict[str, object]) -> str | None:
    """Return the result of a call in-process; None if only a real sandbox can tell."""
    if isinstance(code := arguments.get("code"), str) and len(arguments) == 1:  # with others the call is refused
        return box.ipython(code)
    if isinstance(command := arguments.get("command"), str) and len(arguments) == 1:
        known = WRITE.fullmatch(command) or CHECK.fullmatch(command)
        return box.bash(command) if known and _INSIDE.fullmatch(known[1]) else None
    return None


def _is_right(trajectory: Trajectory, box: Toolbox) -> bool:
    task = trajectory.task.fields
    if trajectory.task.kind == "code":
        return box.passes(task["solution"], task["cases"])
    return bool(trajectory.turns) and last_boxed(trajectory.turns[-1].text) == task["answer"]
