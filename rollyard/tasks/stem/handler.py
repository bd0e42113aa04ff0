"""The handler of the task kind `stem`: it asks the question with its form, and scores the answer by that form."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.kinds.stem_task import StemTask
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.tasks.scoring.checked_score import checked_score
from rollyard.tasks.scoring.checker_pool import CheckerPool
from rollyard.tasks.scoring.final_answer import final_answer
from rollyard.tasks.stem import prompts
from rollyard.tasks.stem.judge import judged
from rollyard.trajectory import Artifact

_HARMLESS = StemTask(question="?", form="number", answer="1").model_dump_json().encode()


class StemHandler:
    eval_needs_sandbox = False

    def __init__(self) -> None:
        self._checkers = CheckerPool("rollyard.tasks.scoring.stem_answers", (_HARMLESS, b"1"))
        self._algebra = CheckerPool("rollyard.tasks.scoring.math_answers", (b"x+1", b"1+x"))

    async def close(self) -> None:
        await self._checkers.close()
        await self._algebra.close()

    def tools(self, task: Task) -> Sequence[str]:
        return task.fields_as(StemTask).tools

    def prompt(self, task: Task) -> list[Message]:
        fields = task.fields_as(StemTask)
        system: list[Message] = [] if fields.system is None else [{"role": "system", "content": fields.system}]
        return [*system, {"role": "user", "content": prompts.question(fields)}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        pass

    async def solve(self, task: Task, sandbox: Sandbox) -> str:
        return prompts.reference_answer(task.fields_as(StemTask))

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        fields = task.fields_as(StemTask)
        text = evaluation.turns[-1].text if evaluation.turns else ""
        answer = final_answer(text, lines=fields.form == "open")
        if answer is None:
            note = "no answer found: the last turn has neither a whole \\boxed{...} nor `Answer: ...`"
            return Score(0.0, {"answered": 0.0}, [note])
        if fields.form == "open":
            return await judged(fields, answer, evaluation.models)
        if fields.form == "expression":
            return await checked_score(self._algebra, fields.answer, answer)
        return await checked_score(self._checkers, fields.model_dump_json(exclude_unset=True), answer)
