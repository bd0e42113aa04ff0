"""`rollyard tasks import stem`: rows of sets of questions to tasks of the kind `stem`."""

from __future__ import annotations

from pathlib import Path

import click

from rollyard.cli.row_import import import_rows
from rollyard.tasks.stem.rows import FAMILY_NAMES, convert, question_family


@click.command("stem")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="file of tasks; default: standard output"
)
@click.option(
    "--family", type=click.Choice(FAMILY_NAMES), help="family of all rows; default: the one that a row's fields tell"
)
def import_stem(file: Path, output: Path | None, family: str | None) -> None:
    """Convert rows of GPQA, MMLU-Pro and other sets of questions to tasks of the kind stem, one JSON line a task.

    FILE has JSON lines, a JSON list, or Parquet (with pyarrow). Rows that cannot become a task are refused, each with its
    line and a reason, on standard error. Exit code 1: no row became a task."""
    chosen = None if family is None else question_family(family)
    import_rows(file, output, lambda row: convert(row, chosen))
