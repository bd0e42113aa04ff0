"""A row of a data set, read field by field, and the outcome of its conversion to a task."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from rollyard.kinds.task_fields import TaskFields


@dataclass(frozen=True, slots=True)
class Converted:
    family: str
    task: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unconverted:
    reason: str


class RowRefused(Exception):
    """A row that cannot become a task. `str()` says why."""


_BY_A_ROW = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, StopIteration, TypeError, ValueError,
)  # fmt: skip
"""Errors by fields that have not the form of their family: a missing field, a number that is infinite, half a surrogate pair, a
depth or a size that no reader takes."""
_MOST_SAID = 120


def row_outcome(fields: Any, convert: Callable[[Mapping[str, Any]], Converted]) -> Converted | Unconverted:
    """Convert a row, as a file has it. Whatever its reader raises refuses this row, and no other."""
    if not isinstance(fields, Mapping):
        return Unconverted(f"it is not JSON: {fields}" if isinstance(fields, ValueError) else "it is not an object")
    try:
        return convert(fields)
    except RowRefused as refused:
        return Unconverted(str(refused))
    except _BY_A_ROW as error:
        why = f"{type(error).__name__}: {error}"[:_MOST_SAID]
        return Unconverted(f"its fields do not have the form of its family: {why}")


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


def check_fields(model: type[TaskFields], fields: Mapping[str, Any]) -> None:
    """Raise RowRefused for fields that make no valid task."""
    try:
        model.model_validate(fields)
    except pydantic.ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the task'}: {e['msg']}" for e in error.errors()[:3])
        raise RowRefused(f"it makes no valid task: {problems}") from None


def _literal(name: str, text: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise RowRefused(f"its field `{name}` is neither JSON nor a list of Python") from None
