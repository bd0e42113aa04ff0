"""An object of a model with a value in every field, however deep: to see that none of them is lost."""

from __future__ import annotations

import types
import typing
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from pydantic import BaseModel

PLAIN: dict[Any, Any] = {
    str: "text",
    int: 1,
    float: 0.5,
    bool: True,
    datetime: datetime(2026, 1, 1, tzinfo=UTC),
    Any: "anything",
}


def filled(model: type[BaseModel]) -> dict[str, Any]:
    """Fields by their Python names, for `model_validate`. Constraints are not looked at."""
    return {name: _value(field.annotation) for name, field in model.model_fields.items()}


def _value(kind: Any) -> Any:
    if kind in PLAIN:
        return PLAIN[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _value(next(one for one in inner if one is not type(None)))
    if origin is typing.Annotated:
        return _value(inner[0])
    if origin is typing.Literal:
        return inner[-1]
    if origin in (list, tuple, set, frozenset):
        return [_value(inner[0])]
    if origin is dict:
        return {_value(inner[0]): _value(inner[1])}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return filled(kind)
    raise TypeError(f"say in tests/support/filled.py how to fill {kind}")
