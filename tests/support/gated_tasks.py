"""A task kind whose stages wait at gates that a test opens: files in a folder that the task names."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.trajectory import Artifact

FILES = {
    "entry_points.txt": f"[rollyard.tasks]\ngated = {__name__}:GatedHandler\ngated_scoring = {__name__}:GatedScoring\n"
    f"gated_failing = {__name__}:GatedFailing\n",
    "METADATA": "Metadata-Version: 2.1\nName: gated-tasks\nVersion: 1\n",
}


class GatedHandler:
    eval_needs_sandbox = False

    def tools(self, task: Task) -> list[str]:
        return ["bash"]

    def prompt(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": "What is 1 + 1?"}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        await _gate(task, "INIT")

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        """Collect the artifact; this is still in RUN."""
        await _gate(task, "RUN")
        return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        await _gate(task, "EVAL")
        return Score(1.0)


class GatedFailing(GatedHandler):
    """The task's own code raises at the end of RUN."""

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        await _gate(task, "RUN")
        raise LookupError("no such thing")


class GatedScoring(GatedHandler):
    """EVAL has a sandbox, and the reward is the content of a file in it."""

    eval_needs_sandbox = True

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        sandbox = evaluation.sandbox
        assert sandbox is not None
        await sandbox.write_file("reward", b"0.5")
        await _gate(task, "EVAL")
        return Score(float(await sandbox.read_file("reward", 10)))


async def _gate(task: Task, stage: str) -> None:
    gate = Path(str(task.fields["gates"]), stage)
    while not gate.exists():
        await asyncio.sleep(0.02)


def install(folder: Path) -> str:
    """Return the PYTHONPATH for processes that should find the task kind."""
    known = folder / "gated_tasks-1.dist-info"
    known.mkdir(parents=True)
    for name, text in FILES.items():
        (known / name).write_text(text)
    given = os.environ.get("PYTHONPATH")
    return ":".join([str(folder), str(Path(__file__).parents[2]), *([given] if given else [])])
