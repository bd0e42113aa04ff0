"""Copies of frozen dataclasses with other values of some fields, in a fifth of the time of `dataclasses.replace`.

That function looks at each field in Python; a rollout's record has 42 fields, and is copied eight times until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import replace as replace  # so that mypy checks the names and types of the fields
else:

    def replace(record, /, **changes):
        """Return a copy. All fields of the class are parameters of its `__init__`, in their order.

        Raises:
            TypeError: a field that the class does not have.
        """
        cls = record.__class__
        values_of, places = _fields(cls)
        values = list(values_of(record))
        for name, value in changes.items():
            place = places.get(name)
            if place is None:
                raise TypeError(f"{cls.__name__} has no field {name}")
            values[place] = value
        return cls(*values)


@cache
def _fields(cls: Any) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, int]]:
    """Return a function that reads the values of all fields, and the place of each field."""
    names = [field.name for field in fields(cls)]
    return attrgetter(*names), {name: place for place, name in enumerate(names)}
