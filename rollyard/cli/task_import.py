"""`rollyard tasks import swe`: rows of SWE-bench and its family to tasks of the kind `swe`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from rollyard.cli.row_import import import_rows, row_options
from rollyard.cli.written_file import say
from rollyard.host.node_cache import node_cache
from rollyard.tasks.swe.rows.conversion import convert
from rollyard.tasks.swe.rows.families import NAMES, family_named
from rollyard.tasks.swe.rows.released_packages import NoPackages, ReleasedPackages


@click.command("swe")
@row_options(NAMES)
@click.option(
    "--environment/--no-environment", default=True, help="install a family's package for rows without a test script"
)
def import_(file: Path, output: Path | None, family: str | None, environment: bool) -> None:
    """Convert rows of SWE-bench and its family to tasks of the kind swe, one JSON line a task.

    FILE has JSON lines, a JSON list, or Parquet (with pyarrow). Rows that cannot become a task are refused, each with its
    line and a reason, on standard error. Exit code 1: no row became a task."""
    chosen = None if family is None else family_named(family)
    specs = ReleasedPackages(node_cache(), say) if environment else NoPackages()
    with contextlib.closing(specs):
        import_rows(file, output, lambda row: convert(row, specs, chosen))
