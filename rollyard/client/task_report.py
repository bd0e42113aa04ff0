"""Reports of `rollyard tasks check`: files of JSON lines, one task a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import pydantic

from rollyard.client.task_verdict import CheckedRun, TaskVerdict
from rollyard.core.errors import BadRequest
from rollyard.kinds.base import WireModel
from rollyard.kinds.task import Task

T = TypeVar("T")
NO_CONTROL_TESTS = "no_control_tests"
"""Metric of the kind `swe`."""


class CheckedTask(WireModel):
    task: str
    """Digest of the task."""
    lines: list[int]
    """Numbers of the task's lines in its file."""
    kind: str
    image: str = ""
    """The task's own sandbox image; empty: the default image of the pool."""
    pool: str
    verdict: TaskVerdict
    why: list[str]
    runs: list[CheckedRun]

    @property
    def without_controls(self) -> bool:
        """Whether its evaluator cannot tell forged results of its tests."""
        return any(run.metrics.get(NO_CONTROL_TESTS) for run in self.runs)


@dataclass(frozen=True)
class TaskReport:
    tasks: Sequence[CheckedTask]

    @classmethod
    def read(cls, file: Path | str) -> Self:
        """Read a report. Raises BadRequest with the line that is wrong."""
        found = list[CheckedTask]()
        try:
            for line in Path(file).read_text().splitlines():
                found.append(CheckedTask.model_validate_json(line))
        except OSError as error:
            raise BadRequest(f"{file}: {error.strerror}") from None
        except (UnicodeDecodeError, pydantic.ValidationError):
            raise BadRequest(
                f"{file}:{len(found) + 1}: no line of a report of `rollyard tasks check -o FILE`"
            ) from None
        return cls(found)

    def choose(
        self, items: Iterable[T], task_of: Callable[[T], Task], only: Collection[TaskVerdict] = (TaskVerdict.SOUND,)
    ) -> tuple[list[T], Counter[str]]:
        """Return the items whose tasks have one of these verdicts, and how many were left out, by their verdict."""
        known = {task.task: task.verdict for task in self.tasks}
        chosen, left_out = list[T](), Counter[str]()
        for item in items:
            verdict = known.get(task_of(item).digest)
            if verdict in only:
                chosen.append(item)
            else:
                left_out[verdict.value if verdict is not None else "not in the report"] += 1
        return chosen, left_out
