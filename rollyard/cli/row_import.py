"""The rows of a file to lines of tasks, with what is said about each."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rollyard.cli.written_file import say, written_file
from rollyard.tasks.rows.dataset_row import Converted, Unconverted
from rollyard.tasks.rows.row_file import numbered_rows

_Command = TypeVar("_Command", bound=Callable[..., Any])
_PATH = click.Path(dir_okay=False, path_type=Path)
_ROWS = click.Path(exists=True, dir_okay=False, path_type=Path)


def row_options(families: Sequence[str]) -> Callable[[_Command], _Command]:
    """Give a command the parameters `file`, `output` and `family`."""

    def add(command: _Command) -> _Command:
        family = "family of all rows; default: the one that a row's fields tell"
        command = click.option("--family", type=click.Choice(families), help=family)(command)
        command = click.option("-o", "--output", type=_PATH, help="file of tasks; default: standard output")(command)
        return click.argument("file", type=_ROWS)(command)

    return add


def import_rows(file: Path, output: Path | None, convert: Callable[[Any], Converted | Unconverted]) -> None:
    """Write one line for each row that becomes a task. Name each refused row with its line and the reason on standard error,
    and exit with 1 if no row became a task."""
    converted, reasons = Counter[str](), Counter[str]()
    with written_file(output) as tasks:
        for number, row in numbered_rows(file):
            made = convert(row)
            if isinstance(made, Unconverted):
                reasons[made.reason] += 1
                say(f"{file}:{number}: refused: {made.reason}")
            else:
                converted[made.family] += 1
                tasks.write(json.dumps(made.task) + "\n")
    for name, count in converted.most_common():
        say(f"{count:7} converted  {name}")
    for reason, count in reasons.most_common():
        say(f"{count:7} refused    {reason}")
    if not converted:
        sys.exit(1)
