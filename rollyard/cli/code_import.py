"""`rollyard tasks import code`: rows of programming sets to tasks of the kind `code`."""

from __future__ import annotations

from pathlib import Path

import click

from rollyard.cli.row_import import import_rows
from rollyard.tasks.code.rows.conversion import convert_problem
from rollyard.tasks.code.rows.families import NAMES


@click.command("code")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="file of tasks; default: standard output"
)
@click.option(
    "--family", type=click.Choice(NAMES), help="family of all rows; default: the one that a row's fields tell"
)
def import_code(file: Path, output: Path | None, family: str | None) -> None:
    """Convert rows of programming sets to tasks of the kind code, one JSON line a task.

    FILE has JSON lines, a JSON list, or Parquet (with pyarrow). Rows that cannot become a task are refused, each with its
    line and a reason, on standard error. Exit code 1: no row became a task."""
    import_rows(file, output, lambda row: convert_problem(row, family))
