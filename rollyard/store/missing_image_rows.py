"""Missing images as rows, and the SQL conditions that an image of a rollout is missing or that all may be tried."""

from __future__ import annotations

from typing import Any

from rollyard.kinds.pool import PoolKey
from rollyard.store.base import MissingImage

_COLUMNS = "namespace, pool, image, message, permanent, registry_down, failures, since, until, trying"
PUT = f"INSERT OR REPLACE INTO missing_images ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
"""Statement for the values of `to_row`."""

_MISSING = "SELECT image FROM missing_images WHERE namespace = ? AND pool = ?"
_AND_DEFAULT = "UNION ALL SELECT '' FROM missing_images WHERE namespace = ? AND pool = ? AND image = ?"
"""The value of `RolloutRecord.image` that stands for the default image."""


def select(where: str) -> str:
    """Return a SELECT whose rows `from_row` can convert."""
    return f"SELECT {_COLUMNS} FROM missing_images {where} ORDER BY namespace, pool, image"


def missing_condition(pool: PoolKey, default_image: str) -> tuple[str, list[object]]:
    """Return the SQL condition that an image of a rollout is missing, even if it may be tried, and its values."""
    return f"AND (image IN ({_MISSING} {_AND_DEFAULT}) OR eval_image IN ({_MISSING}))", [
        *pool,
        *pool,
        default_image,
        *pool,
    ]


def triable_condition(pool: PoolKey, default_image: str, now: float) -> tuple[str, list[object]]:
    """Return the SQL condition that each image of a rollout is there or may be tried at `now`, and its values."""
    values = [*pool, now, *pool, default_image, now, *pool, now]
    held = (
        f"image IN ({_MISSING} AND until > ? {_AND_DEFAULT} AND until > ?) OR eval_image IN ({_MISSING} AND until > ?)"
    )
    return f"AND NOT ({held})", values


def to_row(missing: MissingImage) -> tuple[object, ...]:
    fault = (missing.message, missing.permanent, missing.registry_down, missing.failures)
    return (*missing.pool, missing.image, *fault, missing.since, missing.until, missing.trying)


def from_row(row: tuple[Any, ...]) -> MissingImage:
    namespace, pool, image, message, permanent, registry_down, failures, since, until, trying = row
    fault = (message, bool(permanent), bool(registry_down))
    return MissingImage(PoolKey(namespace, pool), image, *fault, failures, since, until, bool(trying))
