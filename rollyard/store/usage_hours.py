"""Sums of ended rollouts by pool and hour. They are updated when a rollout ends, and outlive the rollouts."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from rollyard.kinds.rollout import CHECK
from rollyard.store.base import RolloutRecord

HOUR = 3600
KEPT_HOURS = 400 * 24
_ADD = (
    "INSERT INTO usage_hours VALUES (?, ?, ?, 1, ?, ?, ?) ON CONFLICT (hour, namespace, pool) DO UPDATE SET "
    "rollouts = rollouts + 1, scored = scored + excluded.scored, prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
    "sampled_tokens = sampled_tokens + excluded.sampled_tokens"
)


class UsageHour(NamedTuple):
    hour: int
    """Unix seconds / 3600."""
    namespace: str
    pool: str
    rollouts: int
    scored: int
    prompt_tokens: int
    sampled_tokens: int

    @property
    def start(self) -> int:
        return self.hour * HOUR


def add(db: sqlite3.Connection, record: RolloutRecord) -> None:
    """Count a rollout that has just ended. Checks do not count: their work is no policy's. The first rollout of an hour
    deletes the sums of the hours that are older than KEPT_HOURS."""
    if record.mode == CHECK or record.finished_at is None:
        return
    hour, summary = int(record.finished_at // HOUR), record.summary
    tokens = (int(summary.get("prompt_tokens") or 0), int(summary.get("tokens") or 0))
    (newest,) = db.execute("SELECT max(hour) FROM usage_hours").fetchone()
    db.execute(_ADD, (hour, record.namespace, record.pool, record.status.scored, *tokens))
    if newest is None or hour > newest:
        db.execute("DELETE FROM usage_hours WHERE hour < ?", (hour - KEPT_HOURS,))


def since(db: sqlite3.Connection, hour: int, namespace: str | None) -> list[UsageHour]:
    """Return the sums of this hour and the later ones."""
    where, values = ("AND namespace = ?", [namespace]) if namespace is not None else ("", [])
    rows = db.execute(f"SELECT * FROM usage_hours WHERE hour >= ? {where}", (hour, *values))
    return [UsageHour(*row) for row in rows]
