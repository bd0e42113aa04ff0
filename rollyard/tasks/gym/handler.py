"""The handler of the task kind `gym`: the library asks and scores, in the rollout's one turn."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.core.errors import TaskError
from rollyard.kinds.gym_task import GymTask
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Environment, Evaluation, Message, Score
from rollyard.tasks.gym.library import ReasoningGym
from rollyard.trajectory import Artifact, Turn


class _Question(Environment):
    """A question, which is made in another process, so `prompt` cannot wait for it."""

    def __init__(self, system: str, question: str) -> None:
        self.opening = [{"role": "system", "content": system}, {"role": "user", "content": question}]

    async def reply(self, turn: Turn) -> None:
        return None

    async def close(self) -> None:
        pass


class GymHandler:
    eval_needs_sandbox = False

    def __init__(self) -> None:
        self._library = ReasoningGym()

    async def close(self) -> None:
        await self._library.close()

    def tools(self, task: Task) -> Sequence[str]:
        task.fields_as(GymTask)
        return ()

    def prompt(self, task: Task) -> list[Message]:
        return []

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        pass

    async def environment(self, task: Task, sandbox: Sandbox) -> Environment:
        fields = task.fields_as(GymTask)
        entry = await self._library.entry(fields)
        return _Question(entry["system"] if fields.system is None else fields.system, entry["question"])

    async def solve(self, task: Task, sandbox: Sandbox) -> str:
        answer = (await self._library.entry(task.fields_as(GymTask)))["answer"]
        if answer is None:
            raise TaskError("the library has no answer of its own for this entry")
        return f"<answer>{answer}</answer>"

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        """Return the question, so that EVAL on another node notices another version of the library."""
        return {"question": (await self._library.entry(task.fields_as(GymTask)))["question"]}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        if not evaluation.turns:
            return Score(0.0, {"answered": 0.0}, ["the agent said nothing"])
        question = str(evaluation.artifact["question"])
        scored = await self._library.score(task.fields_as(GymTask), question, evaluation.turns[-1].text)
        if "reward" not in scored:
            note = "the answer cannot be scored within the limits of CPU time and memory"
            return Score(0.0, {"answered": 1.0, **scored}, [note])
        reward, raised = scored.pop("reward"), scored.pop("raised", None)
        if raised is not None:
            return Score(0.0, {**scored, "raised": 1.0}, [f"the library raised {raised} by this answer"])
        if (why := scored.pop("refused", None)) is not None:
            return Score(0.0, {**scored, "refused": 1.0}, [f"the answer solves nothing: {why}"])
        note = (
            f"the library gives {reward:g}" if scored["answered"] else "no answer found between <answer> and </answer>"
        )
        return Score(reward, scored, [note])
