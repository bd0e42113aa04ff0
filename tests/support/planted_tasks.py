"""A task kind whose tasks have the faults that they name. The agent has to write the number 42 into a file."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rollyard.core.errors import TaskError
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.trajectory import Artifact

FILES = {
    "entry_points.txt": f"[rollyard.tasks]\nplanted = {__name__}:PlantedHandler\n",
    "METADATA": "Metadata-Version: 2.1\nName: planted-tasks\nVersion: 1\n",
}
SLOW_SECONDS = 6.0


class PlantedHandler:
    eval_needs_sandbox = False

    def __init__(self) -> None:
        self._scored: dict[str, Iterator[int]] = defaultdict(itertools.count)
        """Fault -> number of right answers so far."""

    def tools(self, task: Task) -> list[str]:
        return ["bash"]

    def prompt(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": "Write 42 into /workspace/number."}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        if (gate := task.fields.get("gate")) is not None:
            while not Path(str(gate)).exists():
                await asyncio.sleep(0.02)

    async def solve(self, task: Task, sandbox: Sandbox) -> str | None:
        if task.fields["fault"] == "words":
            return "It is 42"
        if task.fields["fault"] == "unsolved":
            raise TaskError("nobody has solved it yet")
        await sandbox.write_file("/workspace/number", b"41" if task.fields["fault"] == "broken" else b"42")
        return None

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        try:
            return {"number": (await sandbox.read_file("/workspace/number", 10)).decode().strip()}
        except OSError:
            return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        fault, number = task.fields["fault"], str(evaluation.artifact.get("number"))
        if fault == "words" and evaluation.turns:
            number = evaluation.turns[-1].text.strip()[-2:]
        if number != task.fields.get("expected", "42"):
            return Score(0.5 if fault == "free" else 0.0, notes=[f"the number is {number}"])
        if fault == "no-verdict":
            raise TaskError("the evaluator's data are gone")
        if fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        wrong = fault == "flaky" and next(self._scored[fault]) % 3 == 1
        return Score(float(not wrong), notes=["the network was down" if wrong else "42"])


def install(folder: Path) -> str:
    """Return the PYTHONPATH for processes that should find the task kind."""
    known = folder / "planted_tasks-1.dist-info"
    known.mkdir(parents=True)
    for name, text in FILES.items():
        (known / name).write_text(text)
    given = os.environ.get("PYTHONPATH")
    return ":".join([str(folder), str(Path(__file__).parents[2]), *([given] if given else [])])
