"""`rollyard tasks import swe`: rows of SWE-bench and its family to tasks of the kind `swe`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import click

from rollyard.cli.printable import printable
from rollyard.core.errors import BadRequest
from rollyard.host.node_cache import node_cache
from rollyard.tasks.swe.rows.conversion import Unconverted, convert
from rollyard.tasks.swe.rows.families import NAMES, family_named
from rollyard.tasks.swe.rows.released_packages import NoPackages, ReleasedPackages
from rollyard.tasks.swe.rows.row_file import numbered_rows


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
    converted, reasons = Counter[str](), Counter[str]()
    specs = ReleasedPackages(node_cache(), _say) if environment else NoPackages()
    with contextlib.closing(specs), _written(output) as tasks:
        for number, row in numbered_rows(file):
            made = convert(row, specs, chosen)
            if isinstance(made, Unconverted):
                reasons[made.reason] += 1
                _say(f"{file}:{number}: refused: {made.reason}")
            else:
                converted[made.family] += 1
                tasks.write(json.dumps(made.task) + "\n")
    for name, count in converted.most_common():
        _say(f"{count:7} converted  {name}")
    for reason, count in reasons.most_common():
        _say(f"{count:7} refused    {reason}")
    if not converted:
        sys.exit(1)


def _say(text: str) -> None:
    click.echo(printable(text), err=True)


@contextlib.contextmanager
def _written(output: Path | None) -> Iterator[TextIO]:
    """Open the output. A file appears when it is complete, and only with a task."""
    if output is None:
        yield sys.stdout
        return
    part = output.with_name(f".{output.name}.part")
    try:
        with part.open("w", encoding="utf-8") as opened:
            yield opened
        if part.stat().st_size:
            part.replace(output)
    except OSError as error:
        raise BadRequest(f"{error.filename or output}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
