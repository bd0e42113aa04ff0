"""Tasks as prompts of TRL. A prompt is a task in JSON, because TRL passes only the column `prompt` to rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rollyard.kinds.task import Task


def task_dataset(tasks: Iterable[Task | Mapping[str, Any]]) -> Any:
    """Make the `train_dataset` of a trainer: a `datasets.Dataset` with one task in each row."""
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [Task.model_validate(task).model_dump_json() for task in tasks]})


def task_of(prompt: Any) -> Task:
    """Parse a prompt that `task_dataset` made. Raises ValueError for other prompts."""
    try:
        return Task.model_validate_json(prompt)
    except ValueError:
        raise ValueError(
            f"the prompt {str(prompt)[:80]!r} is not a task as JSON; "
            "make the dataset with `task_dataset`, or pass `task=` to make a task from your own prompts"
        ) from None
