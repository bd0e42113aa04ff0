"""Fields of the task kind `math`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rollyard.kinds.task_fields import TaskFields


class MathTask(TaskFields):
    """Problem with one answer. The answer is compared as mathematics, not as text."""

    problem: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    """Reference answer, such as 42 or \\frac{1}{2}."""

    @classmethod
    def offers_tools(cls, fields: Mapping[str, Any]) -> bool:
        return True
