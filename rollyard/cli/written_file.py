"""Files that a command writes: they appear when they are complete."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
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
