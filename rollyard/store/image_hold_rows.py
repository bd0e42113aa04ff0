"""Held images as rows, and the SQL conditions that a rollout's image is held or not."""

from __future__ import annotations

from typing import Any

from rollyard.kinds.pool import PoolKey
from rollyard.store.base import ImageHold

_COLUMNS = "namespace, pool, image, message, permanent, registry_down, failures, since, until, trying"
PUT = f"INSERT OR REPLACE INTO image_holds ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
"""Statement for the values of `to_row`."""

_HELD = "SELECT image FROM image_holds WHERE namespace = ? AND pool = ?"
_AND_DEFAULT = "UNION ALL SELECT '' FROM image_holds WHERE namespace = ? AND pool = ? AND image = ?"
"""The value of `RolloutRecord.image` that stands for the default image."""


def select(where: str) -> str:
    """Return a SELECT whose rows `from_row` can convert."""
    return f"SELECT {_COLUMNS} FROM image_holds {where} ORDER BY namespace, pool, image"


def held_condition(pool: PoolKey, default_image: str) -> tuple[str, list[object]]:
    """Return the SQL condition that a rollout's image is held, even if it may be tried, and its values."""
    return f"AND image IN ({_HELD} {_AND_DEFAULT})", [*pool, *pool, default_image]


def free_condition(pool: PoolKey, default_image: str, now: float) -> tuple[str, list[object]]:
    """Return the SQL condition that a rollout's image is not held at `now`, and its values."""
    values = [*pool, now, *pool, default_image, now]
    return f"AND image NOT IN ({_HELD} AND until > ? {_AND_DEFAULT} AND until > ?)", values


def to_row(hold: ImageHold) -> tuple[object, ...]:
    fault = (hold.message, hold.permanent, hold.registry_down, hold.failures)
    return (*hold.pool, hold.image, *fault, hold.since, hold.until, hold.trying)


def from_row(row: tuple[Any, ...]) -> ImageHold:
    namespace, pool, image, message, permanent, registry_down, failures, since, until, trying = row
    fault = (message, bool(permanent), bool(registry_down))
    return ImageHold(PoolKey(namespace, pool), image, *fault, failures, since, until, bool(trying))
