"""Fields of the built-in task kinds. At the submit, the server checks these fields and refuses a wrong task."""

from __future__ import annotations

import ast
from typing import Any

import pydantic
from pydantic import Field, field_validator

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.base import WireModel
from rollyard.kinds.rollout import Task


class MathTask(WireModel):
    """Problem with one answer. The answer is compared as mathematics, not as text."""

    problem: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    """Reference answer, such as 42 or \\frac{1}{2}."""
    image: str | None = None
    """Sandbox image. Default: the image of the pool."""


class CodeCase(WireModel):
    call: str
    """Python expression that uses the solution's definitions, such as f(3)."""
    expect: str = Field(max_length=16_000)
    """Python literal that the value of `call` must equal. The literal never enters a sandbox."""

    @field_validator("expect")
    @classmethod
    def _literal(cls, value: str) -> str:
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError("write a Python literal, such as 9, 'a' or [1, 2]") from None
        return value


class CodeTask(WireModel):
    """Task to write a file. Hidden cases score the file in a fresh sandbox."""

    problem: str = Field(min_length=1)
    solution: str = Field(pattern=r"^/")
    """Absolute path of the file that the agent has to write."""
    cases: list[CodeCase] = Field(min_length=1, max_length=1000)
    files: dict[str, str] = {}
    """Absolute path -> text of files that exist when the agent starts."""
    case_seconds: float = Field(default=10.0, gt=0, le=600)
    """Longest time of one case, in seconds."""
    image: str | None = None
    """Sandbox image. Default: the image of the pool."""


_MODELS: dict[str, type[MathTask] | type[CodeTask]] = {"math": MathTask, "code": CodeTask}
BUILT_IN = frozenset(_MODELS)
"""Task kinds that every node agent has."""


def check_task(task: Task) -> None:
    """Check a task of a built-in kind. Raises Invalid with a cause for each wrong field. Tasks of other kinds are checked by
    their handlers."""
    model = _MODELS.get(task.kind)
    if model is None:
        return
    try:
        model.model_validate(task.fields)
    except pydantic.ValidationError as error:
        causes = [Cause(".".join(["task", *map(str, e["loc"])]), e["msg"]) for e in error.errors()]
        listed = "; ".join(f"{c.field}: {c.message}" for c in causes)
        known = ", ".join(model.model_fields)
        raise Invalid(f"the {task.kind} task is invalid: {listed} (its fields are {known})", causes=causes) from None


def read_math(task: Task) -> MathTask:
    return MathTask.model_validate(_fields(task))


def read_code(task: Task) -> CodeTask:
    return CodeTask.model_validate(_fields(task))


def _fields(task: Task) -> dict[str, Any]:
    check_task(task)
    return task.fields
