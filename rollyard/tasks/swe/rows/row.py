"""A row of a data set, read field by field, and the tools with which a family's module converts it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from rollyard.core.errors import UnknownParser
from rollyard.tasks.swe.log_parsers.family_names import own_name

Fields = dict[str, Any]
"""Fields of a task of the kind `swe`."""


class RowRefused(Exception):
    """A row that cannot become a task. `str()` says why."""


class DatasetRow(Mapping[str, Any]):
    """Fields of a row. Each method raises RowRefused, with the name of the field."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def has(self, *names: str) -> bool:
        """Whether each of these fields is there and not empty."""
        return all(self._fields.get(name) not in (None, "", [], {}) for name in names)

    def text(self, name: str) -> str:
        """Return a text that must not be empty."""
        if not self.text_or_empty(name).strip():
            raise RowRefused(f"its field `{name}` is missing or empty")
        return self.text_or_empty(name)

    def text_or_empty(self, name: str) -> str:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, str):
            raise RowRefused(f"its field `{name}` is not text")
        return value or ""

    def names(self, name: str) -> list[str]:
        """Return a list of texts. Some families write it as JSON or as a list of Python in a text."""
        value = self._fields.get(name)
        if isinstance(value, str):
            value = _literal(name, value)
        if value is None:
            return []
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise RowRefused(f"its field `{name}` is not a list of names")
        return list(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object, which may be JSON in a text."""
        value = self._fields.get(name)
        if isinstance(value, str):
            value = _literal(name, value)
        if not isinstance(value, Mapping):
            raise RowRefused(f"its field `{name}` is not an object")
        return value


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


def _literal(name: str, text: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise RowRefused(f"its field `{name}` is neither JSON nor a list of Python") from None


def _unquoted(text: str) -> str:
    """Return the text inside, if the text is a JSON string, as in SWE-bench Pro."""
    if text.startswith('"') and text.rstrip().endswith('"'):
        try:
            inner = json.loads(text)
        except ValueError:
            return text
        return inner if isinstance(inner, str) else text
    return text
