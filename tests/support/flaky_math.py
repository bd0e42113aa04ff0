"""A task kind like `math` that fails the evaluation of one rollout: the first to remove the file that the task names."""

from __future__ import annotations

from pathlib import Path

from rollyard.core.errors import TaskError
from rollyard.kinds.task import Task
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.tasks.math import MathHandler

FILES = {
    "entry_points.txt": f"[rollyard.tasks]\nflaky = {__name__}:FlakyMathHandler\n",
    "METADATA": "Metadata-Version: 2.1\nName: flaky-math\nVersion: 1\n",
}


class FlakyMathHandler(MathHandler):
    def prompt(self, task: Task) -> list[Message]:
        return super().prompt(_math(task))

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        try:
            Path(str(task.fields["fails_while"])).unlink()
        except FileNotFoundError:
            return await super().evaluate(_math(task), evaluation)
        raise TaskError("this rollout cannot be judged")


def _math(task: Task) -> Task:
    return Task(kind="math", problem=task.fields["problem"], answer=task.fields["answer"])


def install(folder: Path) -> None:
    """Make the task kind known to processes whose PYTHONPATH has this folder."""
    known = folder / "flaky_math-1.dist-info"
    known.mkdir(parents=True)
    for name, text in FILES.items():
        (known / name).write_text(text)
