"""Converts a row of a programming set to a task of the kind `code`. Pure."""

from __future__ import annotations

import json
from typing import Any

from rollyard.kinds.code_task import CodeTask
from rollyard.tasks.code.rows.families import Fields, family_of
from rollyard.tasks.rows.dataset_row import Converted, DatasetRow, RowRefused, Unconverted, check_fields, row_outcome

MAX_BYTES = 500 << 10
"""Length of a task's JSON. A line of a dataset may have a little more."""
_METADATA = ("task_id", "question_id", "name", "difficulty", "platform", "source", "contest_date")


def convert_problem(fields: Any, name: str | None = None) -> Converted | Unconverted:
    """Convert a row, as a file has it. `name`: its family; default: the one that its fields tell."""
    return row_outcome(fields, lambda found: _converted(DatasetRow(found), name))


def _converted(row: DatasetRow, name: str | None) -> Converted:
    family = family_of(row, name)
    made = {key: value for key, value in family.convert(row).items() if value is not None}
    _check(made)
    told = {key: row[key] for key in _METADATA if isinstance(row.get(key), str | int) and row[key] != ""}
    return Converted(family.name, {"kind": "code", **made, "metadata": {"family": family.name, **told}})


def _check(made: Fields) -> None:
    size = len(json.dumps(made))
    if size > MAX_BYTES:
        raise RowRefused(f"its cases are too long: a task may have {MAX_BYTES} bytes")
    check_fields(CodeTask, made)
