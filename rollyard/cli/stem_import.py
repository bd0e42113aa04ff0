"""`rollyard tasks import stem`: rows of sets of questions to tasks of the kind `stem`."""

from __future__ import annotations

from pathlib import Path

import click

from rollyard.cli.row_import import import_rows, row_options
from rollyard.tasks.stem.rows import FAMILY_NAMES, convert, question_family


@click.command("stem")
@row_options(FAMILY_NAMES)
def import_stem(file: Path, output: Path | None, family: str | None) -> None:
    """Convert rows of GPQA, MMLU-Pro and other sets of questions to tasks of the kind stem, one JSON line a task.

    FILE has JSON lines, a JSON list, or Parquet (with pyarrow). Rows that cannot become a task are refused, each with its
    line and a reason, on standard error. Exit code 1: no row became a task."""
    chosen = None if family is None else question_family(family)
    import_rows(file, output, lambda row: convert(row, chosen))
