"""Files that a command writes: they appear when they are complete."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import click

from rollyard.cli.printable import printable
from rollyard.core.errors import BadRequest


def say(text: str) -> None:
    """Print a line on standard error."""
    click.echo(printable(text), err=True)


@contextlib.contextmanager
def written_file(output: Path | None) -> Iterator[TextIO]:
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


def write_lines(output: Path | None, lines: Iterable[str]) -> None:
    """Write these lines to the output, if there is one."""
    if output is not None:
        with written_file(output) as opened:
            opened.writelines(f"{line}\n" for line in lines)
