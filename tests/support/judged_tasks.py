"""A task kind that a judge scores, with a simulated user where the task asks for one. It swallows every error of theirs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import Artifact, Environment, Evaluation, Reply, RoleModels, Score
from rollyard.tasks.base import Message
from rollyard.trajectory import Turn

FILES = {
    "entry_points.txt": f"[rollyard.tasks]\njudged = {__name__}:JudgedHandler\n",
    "METADATA": "Metadata-Version: 2.1\nName: judged-tasks\nVersion: 1\n",
}
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "number"}},
    "required": ["score"],
    "additionalProperties": False,
}
WRONG = 0.987654
"""Reward that no rollout may have."""


class Customer(Environment):
    def __init__(self, task: Task, models: RoleModels) -> None:
        self._task = task
        self._models = models

    async def reply(self, turn: Turn) -> Reply | None:
        try:
            text = await self._models["user"](
                [{"role": "user", "content": f"user n={self._task.fields['n']}: {turn.text}"}]
            )
        except Exception:  # noqa: BLE001 - as careless handlers do
            return Reply("I have no words.", reward=WRONG, done=True)
        return Reply(text, done="bye" in text)

    async def close(self) -> None: ...


class JudgedHandler:
    eval_needs_sandbox = False

    def tools(self, task: Task) -> list[str]:
        return []

    def prompt(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": "What is 1 + 1?"}]

    async def init(self, task: Task, sandbox: Sandbox) -> None: ...

    async def environment(self, task: Task, sandbox: Sandbox, models: RoleModels) -> Customer | None:
        return Customer(task, models) if task.fields.get("user") else None

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        try:
            found = await evaluation.models.judge(
                self._question(task, evaluation.turns[-1].text), schema=SCHEMA, control=self._question(task, "2")
            )
        except Exception:  # noqa: BLE001 - as careless handlers do
            return Score(WRONG)
        return Score(found["score"])

    def _question(self, task: Task, answer: str) -> Sequence[Message]:
        return [{"role": "user", "content": f"judge n={task.fields['n']}, scored 0 to 1: {answer!r}"}]


def install(folder: Path) -> str:
    """Return the PYTHONPATH for processes that should find the task kind."""
    known = folder / "judged_tasks-1.dist-info"
    known.mkdir(parents=True)
    for name, text in FILES.items():
        (known / name).write_text(text)
    given = os.environ.get("PYTHONPATH")
    return ":".join([str(folder), str(Path(__file__).parents[2]), *([given] if given else [])])
