"""Images that cannot be had now, and the queued rollouts that wait for them."""

from __future__ import annotations

import sqlite3
from collections import Counter

from rollyard.kinds.pool import PoolKey
from rollyard.server.store.base import ImageHold

_COLUMNS = "namespace, pool, image, message, permanent, registry_down, failures, since, until, trying"


def image_holds(db: sqlite3.Connection, pool: PoolKey | None = None) -> list[ImageHold]:
    where, values = ("WHERE namespace = ? AND pool = ?", tuple(pool)) if pool is not None else ("", ())
    rows = db.execute(f"SELECT {_COLUMNS} FROM image_holds {where} ORDER BY namespace, pool, image", values)
    return [_hold(*row) for row in rows]


def put_image_hold(db: sqlite3.Connection, hold: ImageHold) -> None:
    fault = (hold.message, hold.permanent, hold.registry_down, hold.failures)
    values = (*hold.pool, hold.image, *fault, hold.since, hold.until, hold.trying)
    db.execute(f"INSERT OR REPLACE INTO image_holds ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


def delete_image_hold(db: sqlite3.Connection, pool: PoolKey, image: str) -> bool:
    done = db.execute("DELETE FROM image_holds WHERE namespace = ? AND pool = ? AND image = ?", (*pool, image))
    return done.rowcount > 0


def free_condition(pool: PoolKey, default_image: str, now: float) -> tuple[str, list[object]]:
    """Return the SQL condition that a rollout's image is not held at `now`, and its values."""
    return f"AND image NOT IN ({_HELD} AND until > ? {_AND_DEFAULT} AND until > ?)", [
        *pool,
        now,
        *pool,
        default_image,
        now,
    ]


def count_held(db: sqlite3.Connection, pool: PoolKey, default_image: str, now: float) -> int:
    due = {hold.image for hold in image_holds(db, pool) if hold.until <= now}
    query = (
        "SELECT image, count(*) FROM rollouts INDEXED BY rollouts_queued WHERE status = 'Queued' AND holder IS NULL "
        f"AND namespace = ? AND pool = ? AND stage = 'INIT' AND image IN ({_HELD} {_AND_DEFAULT}) GROUP BY image"
    )
    rows = db.execute(query, (*pool, *pool, *pool, default_image))
    return sum(count - ((image or default_image) in due) for image, count in rows)


def queued_images(db: sqlite3.Connection, pool: PoolKey, default_image: str, now: float, limit: int) -> dict[str, int]:
    free, held = free_condition(pool, default_image, now)
    query = (
        "SELECT image FROM rollouts INDEXED BY rollouts_queued WHERE status = 'Queued' AND holder IS NULL AND namespace = ? "
        f"AND pool = ? AND stage = 'INIT' AND not_before <= ? {free} ORDER BY priority DESC, queue_rank, seq LIMIT ?"
    )
    rows = db.execute(query, (*pool, now, *held, limit))
    return dict(Counter(image or default_image for (image,) in rows if image or default_image))


_HELD = "SELECT image FROM image_holds WHERE namespace = ? AND pool = ?"
_AND_DEFAULT = "UNION ALL SELECT '' FROM image_holds WHERE namespace = ? AND pool = ? AND image = ?"
"""The value of `RolloutRecord.image` that stands for the default image."""


def _hold(
    namespace: str,
    pool: str,
    image: str,
    message: str,
    permanent: int,
    registry_down: int,
    failures: int,
    since: float,
    until: float,
    trying: int,
) -> ImageHold:
    key, fault = PoolKey(namespace, pool), (message, bool(permanent), bool(registry_down))
    return ImageHold(key, image, *fault, failures, since, until, bool(trying))
