"""Rows of a file: JSON lines, a JSON list, or Parquet."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollyard.core.errors import BadRequest

NumberedRow = tuple[int, Any]
"""Number of a row, from 1, and the row. In JSON lines it is the number of the line."""


def numbered_rows(file: Path) -> Iterator[NumberedRow]:
    """Read the rows one after another. A line that is not JSON comes as the error. Raises BadRequest."""
    try:
        with file.open("rb") as opened:
            begins = opened.read(4096).lstrip()
            opened.seek(0)
            if begins.startswith(b"PAR1"):
                yield from _parquet(file)
            elif begins.startswith(b"["):
                yield from enumerate(_json_list(file, opened.read()), start=1)
            else:
                for number, line in enumerate(opened, start=1):
                    if line.strip():
                        yield number, _row(line)
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror}") from None


def _row(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        return error
    except RecursionError:
        return ValueError("its lists and objects are nested too deeply")


def _json_list(file: Path, text: bytes) -> list[Any]:
    try:
        rows: list[Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{file} is not JSON: {error}. Write one row a line, a list of rows, or Parquet") from None
    return rows


def _parquet(file: Path) -> Iterator[NumberedRow]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise BadRequest(
            f"{file} is Parquet, which pyarrow reads: `pip install pyarrow` into Rollyard's environment, or write JSON lines"
        ) from None
    try:
        number = 0
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=256):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except importlib.import_module("pyarrow").ArrowInvalid as error:
        raise BadRequest(f"{file} is not valid Parquet: {error}") from None
