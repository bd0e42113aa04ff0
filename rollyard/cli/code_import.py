"""`rollyard tasks import code`: rows of programming sets to tasks of the kind `code`."""

from __future__ import annotations

from pathlib import Path

import click

from rollyard.cli.row_import import import_rows, row_options
from rollyard.tasks.code.rows.conversion import convert_problem
from rollyard.tasks.code.rows.families import NAMES


@click.command("code")
@row_options(NAMES)
def import_code(file: Path, output: Path | None, family: str | None) -> None:
    """Convert rows of programming sets to tasks of the kind code, one JSON line a task.

    FILE has JSON lines, a JSON list, or Parquet (with pyarrow). Rows that cannot become a task are refused, each with its
    line and a reason, on standard error. Exit code 1: no row became a task."""
    import_rows(file, output, lambda row: convert_problem(row, family))
