"""`rollyard tasks import swe`: rows of SWE-bench and its family to tasks of the kind `swe`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from rollyard.cli.row_import import import_rows
from rollyard.cli.written_file import say
from rollyard.host.node_cache import node_cache
from rollyard.tasks.swe.rows.conversion import convert
from rollyard.tasks.swe.rows.families import NAMES, family_named
from rollyard.tasks.swe.rows.released_packages import NoPackages, ReleasedPackages


@click.command("swe")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="file of tasks; default: standard output"
)
@click.option(
    "--family", type=click.Choice(NAMES), help="family of all rows; default: the one that a row's fields tell"
)
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
