"""One row to one task, or to the reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from rollyard.kinds.swe_task import SweTask
from rollyard.kinds.values.image_reference import parse_image
from rollyard.tasks.swe.rows.families import RowFamily, family_of, unwrapped
from rollyard.tasks.swe.rows.row import DatasetRow, EvalSpecs, Fields, RowRefused

_METADATA = ("instance_id", "repo", "version", "language", "difficulty", "commit_hash")


@dataclass(frozen=True, slots=True)
class Converted:
    family: str
    task: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unconverted:
    reason: str


def convert(fields: Any, specs: EvalSpecs, family: RowFamily | None = None) -> Converted | Unconverted:
    """Convert a row, as a file has it. `family`: default is the one that its fields tell."""
    if not isinstance(fields, Mapping):
        return Unconverted(f"it is not JSON: {fields}" if isinstance(fields, ValueError) else "it is not an object")
    try:
        row = unwrapped(fields)
        family = family or family_of(row)
        return Converted(family.name, _task(family, row, specs))
    except RowRefused as refused:
        return Unconverted(str(refused))


def _task(family: RowFamily, row: DatasetRow, specs: EvalSpecs) -> dict[str, Any]:
    fields = {name: value for name, value in family.convert(row, specs).items() if value not in (None, [], {})}
    _check(fields)
    named = {"repo": row.get("repo_name"), "language": row.get("repo_language")}
    told = {name: row.get(name) or named.get(name) for name in _METADATA}
    metadata = {name: value for name, value in told.items() if isinstance(value, str) and value}
    return {"kind": "swe", **fields, "metadata": {"family": family.name, **metadata}}


def _check(fields: Fields) -> None:
    try:
        parse_image(fields["image"])
        SweTask.model_validate(fields)
    except pydantic.ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the task'}: {e['msg']}" for e in error.errors()[:3])
        raise RowRefused(f"it makes no valid task: {problems}") from None
    except ValueError as error:
        raise RowRefused(str(error)) from None
