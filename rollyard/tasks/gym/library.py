"""The library reasoning-gym in processes of its own."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from rollyard.core.errors import TaskError
from rollyard.kinds.gym_task import GymTask
from rollyard.tasks.scoring.checker_pool import CheckerKilled, CheckerPool

_HARMLESS = GymTask(dataset="chain_sum", seed=1, index=0).model_dump_json().encode()


class ReasoningGym:
    def __init__(self) -> None:
        """Raises TaskError if the library is not installed."""
        if find_spec("reasoning_gym") is None:
            how = f"{sys.executable} -m pip install reasoning-gym==0.1.25"
            raise TaskError(
                f"reasoning-gym is not installed in the Python of this node agent; run `{how}` and restart it"
            )
        self._processes = CheckerPool("rollyard.tasks.gym.reasoning_gym_process", (_HARMLESS,))

    async def entry(self, task: GymTask) -> dict[str, Any]:
        """Return `question`, `answer` (None: the library knows none) and `system`. Raises TaskError if there is no such
        entry, and NodeFault if the library does not run here."""
        try:
            return _right(task, await self._processes.ask(_fields(task)))
        except CheckerKilled:
            raise TaskError(f"{_name(task)} cannot be made within the limits of CPU time and memory") from None

    async def score(self, task: GymTask, question: str, text: str) -> dict[str, Any]:
        """Return `reward` and `answered`, `raised` if the library raised an exception by the answer, `refused` if the answer
        solves nothing, or a metric named for the reason why the answer has no score. Raises as `entry`."""
        said = text.encode("utf-8", "replace")
        try:
            scored = await self._processes.ask(_fields(task), question.encode("utf-8", "replace"), said)
        except CheckerKilled as why:
            scored = {str(why): 1.0}
        if "reward" not in scored and "error" not in scored:
            await self.entry(task)  # the fault is the answer's only if the entry can be made
        return _right(task, scored)

    async def close(self) -> None:
        await self._processes.close()


def _right(task: GymTask, found: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        raise TaskError(f"{_name(task)}: {found['error']}")
    return found


def _name(task: GymTask) -> str:
    return f"entry {task.index} of {task.dataset}"


def _fields(task: GymTask) -> bytes:
    return task.model_dump_json(include={"dataset", "seed", "index", "config", "difficulty", "level"}).encode()
