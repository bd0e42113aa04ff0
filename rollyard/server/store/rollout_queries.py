"""Queries about rollouts. Each query except `queue_places` is one statement, so it reads a single state of the store."""

from __future__ import annotations

import math
import sqlite3
from typing import Any

from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.values.image_reference import normal_form
from rollyard.server.store import image_holds, row_codec
from rollyard.server.store.base import RolloutFilter, RolloutRecord

Counts = dict[tuple[Stage, Status], int]


_BY_ID = f"{row_codec.select('rollouts_by_id')} WHERE namespace = ? AND id = ?"


def get_rollout(db: sqlite3.Connection, namespace: str, id: str) -> RolloutRecord | None:
    row = db.execute(_BY_ID, (namespace, id)).fetchone()
    return row_codec.from_row(row) if row else None


def list_rollouts(db: sqlite3.Connection, filter: RolloutFilter) -> list[RolloutRecord]:
    where, values = _where(namespace=filter.namespace, pool=filter.pool, group=filter.group)
    if filter.status:
        where += f" AND status IN ({', '.join('?' * len(filter.status))})"
        values += [s.value for s in filter.status]
    live = bool(filter.status) and not any(s.terminal for s in filter.status)
    if live:
        where += " AND cursor IS NULL"
    query = f"{row_codec.select(_list_index(filter, live))} WHERE {where} AND seq > ? ORDER BY seq LIMIT ?"
    return [row_codec.from_row(r) for r in db.execute(query, [*values, filter.after_seq, filter.limit])]


def _list_index(filter: RolloutFilter, live: bool) -> str | None:
    """Return the name of the index to use; None for no index. In each case SQLite reads the rows in order of seq,
    without sorting."""
    if filter.namespace is None:
        return None
    if filter.group is not None:
        return "rollouts_by_group"
    if live:
        return "rollouts_live"
    return None if filter.pool is None else "rollouts_by_pool"


def finished(
    db: sqlite3.Connection, after: int, limit: int, namespace: str | None, group: str | None
) -> list[RolloutRecord]:
    where, values = _where(namespace=namespace, group=group)
    index = "rollouts_finished" if namespace is None or group is None else "rollouts_finished_group"
    query = f"{row_codec.select(index)} WHERE {where} AND cursor IS NOT NULL AND cursor > ? ORDER BY cursor LIMIT ?"
    return [row_codec.from_row(r) for r in db.execute(query, [*values, after, limit])]


def newest_seq(db: sqlite3.Connection) -> int:
    return db.execute("SELECT max(seq) FROM rollouts").fetchone()[0] or 0


def newest_cursor(db: sqlite3.Connection) -> int:
    last = db.execute("SELECT max(cursor) FROM rollouts INDEXED BY rollouts_finished WHERE cursor IS NOT NULL")
    return last.fetchone()[0] or 0


def counts(db: sqlite3.Connection, namespace: str, pool: str | None, group: str | None) -> Counts:
    where, values = _where(namespace=namespace, pool=pool, group=group)
    count = "SELECT stage, status, count(*) FROM rollouts INDEXED BY"
    if group is not None:
        return _counts(db, f"{count} rollouts_by_group WHERE {where} GROUP BY stage, status", values)
    live = f"{count} rollouts_live WHERE {where} AND cursor IS NULL GROUP BY stage, status"
    ended = f"SELECT stage, status, sum(records) FROM tallies WHERE {where} GROUP BY stage, status"
    return _counts(db, f"{live} UNION ALL {ended}", values * 2)


def queue_places(
    db: sqlite3.Connection, namespace: str, pool: str, now: float, limit: int, default_image: str
) -> dict[Stage, dict[int, int]]:
    free, held = image_holds.free_condition(PoolKey(namespace, pool), default_image, now)
    found = {}
    for stage, also, values in ((Stage.INIT, free, held), (Stage.EVAL, "", [])):
        query = (
            "SELECT seq FROM rollouts INDEXED BY rollouts_queued WHERE status = 'Queued' AND holder IS NULL AND namespace = ? "
            f"AND pool = ? AND stage = ? AND not_before <= ? {also} ORDER BY priority DESC, queue_rank, seq LIMIT ?"
        )
        rows = db.execute(query, (namespace, pool, stage.value, now, *values, limit))
        found[stage] = {seq: before for before, (seq,) in enumerate(rows)}
    return found


def images_needed(db: sqlite3.Connection) -> set[str]:
    query = "SELECT DISTINCT image FROM rollouts INDEXED BY rollouts_live WHERE cursor IS NULL AND image != ''"
    of_rollouts = {image for (image,) in db.execute(query)}
    query = (
        "SELECT DISTINCT json_extract(body, '$.image') FROM dataset_tasks WHERE instr(body, '\"image\"') AND digest IN "
        "(SELECT series.digest FROM batches INDEXED BY batches_running JOIN series "
        "ON series.namespace = batches.namespace AND series.name = batches.series WHERE batches.status = 'Running')"
    )
    of_batches = {normal_form(image) for (image,) in db.execute(query)}
    return (of_rollouts | of_batches) - {""}


def count_queued(db: sqlite3.Connection, pool: PoolKey) -> int:
    query = (
        "SELECT count(*) FROM rollouts INDEXED BY rollouts_queued WHERE status = 'Queued' AND holder IS NULL "
        "AND namespace = ? AND pool = ? AND NOT EXISTS (SELECT 1 FROM batch_groups "
        'WHERE batch_groups.namespace = rollouts.namespace AND batch_groups.id = rollouts."group")'
    )
    return int(db.execute(query, pool).fetchone()[0])


def reward_mean(db: sqlite3.Connection, namespace: str, pool: str | None, group: str | None) -> float | None:
    where, values = _where(namespace=namespace, pool=pool, group=group)
    query = f"SELECT avg(reward) FROM rollouts INDEXED BY rollouts_by_group WHERE {where}"
    if group is None:
        query = f"SELECT sum(rewards) / nullif(sum(rewarded), 0) FROM tallies WHERE {where}"
    mean: float | None = db.execute(query, values).fetchone()[0]
    return mean if mean is not None and math.isfinite(mean) else None  # the sum of rewards near 1e308 is infinite


def _counts(db: sqlite3.Connection, query: str, values: list[Any]) -> Counts:
    return {(Stage(stage), Status(status)): n for stage, status, n in db.execute(query, values)}


def _where(**equal: str | None) -> tuple[str, list[Any]]:
    """Return an SQL condition on the given columns, and its values."""
    given = {name: value for name, value in equal.items() if value is not None}
    return " AND ".join(["TRUE", *(f'"{name}" = ?' for name in given)]), list(given.values())
