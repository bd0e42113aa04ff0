"""Task kind `math`: the agent computes with IPython and answers in \\boxed{}. The rule in docs/math.md judges the answer."""

from __future__ import annotations

from rollyard.kinds.math_task import MathTask
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import system_prompts
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.tasks.scoring.checked_score import checked_score
from rollyard.tasks.scoring.checker_pool import CheckerPool
from rollyard.tasks.scoring.final_answer import last_boxed
from rollyard.trajectory import Artifact


class MathHandler:
    eval_needs_sandbox = False

    def __init__(self) -> None:
        self._checkers = CheckerPool("rollyard.tasks.scoring.math_answers", (b"x+1", b"1+x"))

    async def close(self) -> None:
        await self._checkers.close()

    def tools(self, task: Task) -> list[str]:
        return ["ipython"]

    def prompt(self, task: Task) -> list[Message]:
        return [
            {"role": "system", "content": system_prompts.MATH},
            {"role": "user", "content": task.fields_as(MathTask).problem},
        ]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        pass

    async def solve(self, task: Task, sandbox: Sandbox) -> str:
        return f"\\boxed{{{task.fields_as(MathTask).answer}}}"

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        answer = last_boxed(evaluation.turns[-1].text) if evaluation.turns else None
        if answer is None:
            return Score(0.0, {"answered": 0.0}, ["no answer found: the last turn has no whole \\boxed{...}"])
        return await checked_score(self._checkers, task.fields_as(MathTask).answer, answer)
