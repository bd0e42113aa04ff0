"""A task kind whose EVAL tells what its sandbox has."""

from __future__ import annotations

from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.trajectory import Artifact

MARKER = "/marker"
"""A file of the evaluator's image."""


class EvaluatedHandler:
    eval_needs_sandbox = True

    def tools(self, task: Task) -> list[str]:
        return []

    def prompt(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": "Hello."}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        pass

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        return {"raw": b"\xff\x00", "marker_in_run": str(await _has_marker(sandbox))}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        assert evaluation.sandbox is not None
        there = await _has_marker(evaluation.sandbox)
        raw = float(evaluation.artifact["raw"] == b"\xff\x00")
        return Score(1.0, {"seconds": evaluation.seconds}, parts={"marker": float(there), "raw": raw})


async def _has_marker(sandbox: Sandbox) -> bool:
    return (await sandbox.bash(f"test -e {MARKER}", 30)).exit_code == 0
