"""Fields of the task kind `code`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from rollyard.kinds.base import WireModel
from rollyard.kinds.task_fields import TaskFields


class CodeCase(WireModel):
    call: str
    """Python expression that uses the solution's definitions, such as f(3). If it compares with a constant, as
    f(3) == 9, only f(3) runs in the sandbox."""
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


class CodeTask(TaskFields):
    """Task to write a file. Hidden cases score the file in a fresh sandbox."""

    problem: str = Field(min_length=1)
    solution: str = Field(pattern=r"^/")
    """Absolute path of the file that the agent has to write."""
    cases: list[CodeCase] = Field(min_length=1, max_length=1000)
    files: dict[str, str] = {}
    """Absolute path -> text of files that exist when the agent starts."""
    case_seconds: float = Field(default=10.0, gt=0, le=600)
    """Longest time of one case, in seconds."""
    relative_tolerance: float = Field(default=0.0, ge=0, lt=1)
    """Accepted difference from an expected float, as a share of the expected float. 0: floats are compared exactly."""
    absolute_tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Accepted difference from an expected float. Either of the two tolerances is enough."""
    eval_from_snapshot: bool = False
    """True: the cases run with all files that the agent's sandbox had changed, such as further modules and installed
    packages. False: they run with `files` and the solution alone."""
    reference: str | None = None
    """Text of a right solution file, for `rollyard tasks check`. No agent sees it."""

    @classmethod
    def offers_tools(cls, fields: Mapping[str, Any]) -> bool:
        return True
