"""The tools with which a family's module converts a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from rollyard.core.errors import UnknownParser
from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.swe.log_parsers.family_names import own_name

Fields = dict[str, Any]
"""Fields of a task of the kind `swe`."""


class EvalSpec(NamedTuple):
    """How the release of a family's own package tests a row."""

    script: str
    log_parser: str
    """The family's name of the parser."""
    image: str
    seconds: float | None = None


class EvalSpecs(Protocol):
    """Packages of families whose rows do not say how they are tested."""

    def eval_spec(self, family: str, row: Mapping[str, Any]) -> EvalSpec:
        """Return how the row is tested. Raises RowRefused."""


def registry_image(name: str) -> str:
    """Return the name of a family's image as Rollyard writes it. A path of a file stays as it is."""
    return name if "://" in name or name.startswith("/") else f"docker://{name}"


def statement(row: DatasetRow, *further: tuple[str, str]) -> str:
    """Return the problem statement, followed by further fields under their headings."""
    parts = [_unquoted(row.text("problem_statement"))]
    parts += [f"## {heading}\n\n{_unquoted(row.text(name))}" for heading, name in further if row.has(name)]
    return "\n\n".join(parts)


def own_parser(family: str, name: str, instance: str = "") -> str:
    """Return Rollyard's name of a family's log parser."""
    try:
        return own_name(family, name, instance)
    except UnknownParser as error:
        raise RowRefused(str(error)) from None


def _unquoted(text: str) -> str:
    """Return the text inside, if the text is a JSON string, as in SWE-bench Pro."""
    if text.startswith('"') and text.rstrip().endswith('"'):
        try:
            inner = json.loads(text)
        except ValueError:
            return text
        return inner if isinstance(inner, str) else text
    return text
