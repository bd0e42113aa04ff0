"""One row to one task, or to the reason why not."""

from __future__ import annotations

from typing import Any

from rollyard.kinds.swe_task import SweTask
from rollyard.kinds.values.image_reference import parse_image
from rollyard.tasks.rows.dataset_row import Converted, DatasetRow, RowRefused, Unconverted, check_fields, row_outcome
from rollyard.tasks.swe.rows.families import RowFamily, family_of, unwrapped
from rollyard.tasks.swe.rows.row import EvalSpecs, Fields

_METADATA = ("instance_id", "repo", "version", "language", "difficulty", "commit_hash")


def convert(fields: Any, specs: EvalSpecs, family: RowFamily | None = None) -> Converted | Unconverted:
    """Convert a row, as a file has it. `family`: default is the one that its fields tell."""
    return row_outcome(fields, lambda found: _converted(unwrapped(found), specs, family))


def _converted(row: DatasetRow, specs: EvalSpecs, family: RowFamily | None) -> Converted:
    family = family or family_of(row)
    return Converted(family.name, _task(family, row, specs))


def _task(family: RowFamily, row: DatasetRow, specs: EvalSpecs) -> dict[str, Any]:
    fields = {name: value for name, value in family.convert(row, specs).items() if value not in (None, [], {})}
    _check(fields)
    named = {"repo": row.get("repo_name"), "language": row.get("repo_language")}
    told = {name: row.get(name) or named.get(name) for name in _METADATA}
    metadata = {name: value for name, value in told.items() if isinstance(value, str) and value}
    return {"kind": "swe", **fields, "metadata": {"family": family.name, **metadata}}


def _check(fields: Fields) -> None:
    check_fields(SweTask, fields)
    try:
        parse_image(fields["image"])
    except ValueError as error:
        raise RowRefused(str(error)) from None
