"""Task kind `math`: the agent computes with IPython and answers in \\boxed{}. The rule in docs/math.md judges the answer."""

from __future__ import annotations

import re
from typing import Any

from rollyard.core.errors import TaskError
from rollyard.kinds.math_task import MathTask
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import system_prompts
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.tasks.scoring.checker_pool import CheckerKilled, CheckerPool
from rollyard.trajectory import Artifact

MAX_ANSWER_CHARS = 2000
_TOO_HARD = "the answer cannot be compared with the reference within the limits of CPU time and memory"
_BRACES = re.compile(r"\\boxed\{|[{}]")


class MathHandler:
    eval_needs_sandbox = False

    def __init__(self) -> None:
        self._checkers = CheckerPool("rollyard.tasks.scoring.math_answers", (b"1", b"1"))

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
        if len(answer) > MAX_ANSWER_CHARS:
            why = f"the answer has {len(answer)} characters; the limit is {MAX_ANSWER_CHARS}"
            return Score(0.0, {"answered": 1.0, "too_long": 1.0}, [why])
        verdict = await self._verdict(task.fields_as(MathTask).answer, answer)
        notes = verdict.pop("notes", [_TOO_HARD])
        return Score(verdict.pop("right", 0.0), {"answered": 1.0, **verdict}, notes)

    async def _verdict(self, reference: str, answer: str) -> dict[str, Any]:
        """Return {"right": 1.0 or 0.0, "notes": reasons}, or a metric named for the reason why the answer cannot be
        judged. Raises TaskError if the reference is at fault."""
        expected = reference.encode("utf-8", "replace")
        try:
            verdict = await self._checkers.ask(expected, answer.encode("utf-8", "replace"))
        except CheckerKilled as why:
            verdict = {str(why): 1.0}
        if "right" not in verdict and "bad_reference" not in verdict:
            try:
                computable = "too_large" not in await self._checkers.ask(expected, b"")
            except CheckerKilled:
                computable = False
            if not computable:
                raise TaskError(f"the reference answer {reference!r} cannot be computed within the limits")
        if "bad_reference" in verdict:
            raise TaskError(f"the reference answer {reference!r} cannot be read as mathematics")
        return verdict


def last_boxed(text: str) -> str | None:
    """Return the content of the last \\boxed{…} with balanced braces; None if there is none. Takes linear time. A box around
    boxes is one answer with all that is in it."""
    content, open_at = None, list[tuple[int, bool]]()
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_at.append((brace.end(), brace[0] != "{"))
        elif open_at:
            begin, boxed = open_at.pop()
            alone = content == (begin + len("\\boxed{"), brace.start() - 1)  # a box in a box, and nothing else
            if boxed and not alone:
                content = begin, brace.start()
    return None if content is None else text[slice(*content)].replace("\\boxed{", "{")
