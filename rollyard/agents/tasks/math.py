"""Task kind `math`: compute with IPython, answer in \\boxed{}, compared by math-verify."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.agents import prompts
from rollyard.agents.answers import AnswerChecker
from rollyard.agents.tasks.base import Artifact, Message, Score
from rollyard.kinds.rollout import Task, Turn
from rollyard.kinds.tasks import read_math
from rollyard.sandbox.sandbox import Sandbox


class MathHandler:
    eval_needs_sandbox = False

    def __init__(self) -> None:
        self._checker = AnswerChecker()

    def image(self, task: Task) -> str | None:
        return read_math(task).image

    def tools(self, task: Task) -> list[str]:
        return ["ipython"]

    def prompt(self, task: Task) -> list[Message]:
        return [{"role": "system", "content": prompts.MATH}, {"role": "user", "content": read_math(task).problem}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        pass

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        return {}

    async def evaluate(
        self, task: Task, artifact: Artifact, sandbox: Sandbox | None, turns: Sequence[Turn], seconds: float
    ) -> Score:
        answer = last_boxed(turns[-1].text) if turns else None
        if answer is None:
            return Score(0.0, {"answered": 0.0})
        equal = await self._checker.equal(read_math(task).answer, answer)
        return Score(float(equal), {"answered": 1.0})


def last_boxed(text: str) -> str | None:
    """The content of the last \\boxed{…} whose braces balance; None when there is none."""
    start = text.rfind("\\boxed{")
    while start >= 0:
        depth, begin = 0, start + len("\\boxed{")
        for i in range(begin - 1, len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return text[begin:i]
        start = text.rfind("\\boxed{", 0, start)
    return None
