"""Searches among all rollouts of a namespace, and sums over what they find.

A search reads one index, `rollouts_searched`, which has all columns of its conditions; the rows themselves are read for the
rollouts that it returns. So the time of a search grows with the number of stored rollouts, but slowly.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from rollyard.kinds.rollout import CHECK, RolloutSums
from rollyard.kinds.rollout_history import LOSS_EVENTS
from rollyard.store import row_codec
from rollyard.store.base import RolloutFilter, RolloutRecord, RolloutSearch, SortField

SUSPICIOUS = "reward > 0 AND suspicious"
METADATA = "metadata."
"""Beginning of a field by which sums are grouped: `metadata.difficulty`."""
GROUPED: dict[str, str] = {
    "reason": "coalesce(reason, status)",
    "kind": "task_kind",
    "pool": "pool",
    "status": "status",
    "mode": "mode",
    "group": '"group"',
    "task": "nullif(task, '')",
}
"""Field by which sums are grouped -> SQL expression."""
_SORTED = {SortField.ENDED: "finished_at"}
_TASK = "CASE WHEN mode = 'eval' AND task = '' THEN id ELSE task END"
"""Task of a rollout of a group. The rollouts of an evaluation have one group, which has several tasks; without the tasks'
digests none of them can be compared."""
PROMPTS = 100
"""Greatest number of rows with the beginning of a task's text, which is read from the requests."""
_TEXTS = ", ".join(
    f"json_extract(body, '$.task.{name}')"
    for name in ("problem", "problem_statement", "question", "instruction", "prompt")
)
_PROMPT = f"substr(coalesce({_TEXTS}, ''), 1, 200)"
_INDEX = "rollouts INDEXED BY rollouts_searched"


def find(db: sqlite3.Connection, filter: RolloutFilter, search: RolloutSearch) -> list[RolloutRecord]:
    """Return the records that match: in order of arrival after `filter.after_seq`, or sorted, without a next page."""
    where, values = _conditions(filter, search)
    order, last = "seq", "seq"
    if search.sort is not None:
        column = _SORTED.get(search.sort, search.sort.value)
        where.append(f"{column} IS NOT NULL")
        direction = "DESC" if search.descending else "ASC"
        order = last = f"{column} {direction}, seq {direction}"
    else:
        where.append("seq > ?")
        values.append(filter.after_seq)
    found = f"SELECT seq FROM {_INDEX} WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?"
    query = f"{row_codec.select_found(found)} ORDER BY {last}"
    return [row_codec.from_row(row) for row in db.execute(query, [*values, filter.limit])]


def summarize(
    db: sqlite3.Connection, filter: RolloutFilter, search: RolloutSearch, by: str, limit: int
) -> list[RolloutSums]:
    """Return sums over the ended rollouts that match, without checks, by a field of GROUPED or one of the tasks' metadata.

    With `task` the hardest tasks come first, otherwise the values with the most rollouts. With metadata, rollouts of tasks
    without this name are left out.
    """
    where, values = _conditions(filter, search)
    tables, value, given = _INDEX, GROUPED.get(by, ""), list[Any]()
    if by.startswith(METADATA):
        begin = f"{by.removeprefix(METADATA)}="
        items = (
            "SELECT rollout, substr(item, ?) AS value FROM metadata_items WHERE space = ? AND item >= ? AND item < ?"
        )
        tables, value = f"({items}) AS items CROSS JOIN {_INDEX}", "items.value"
        given = [len(begin) + 1, filter.namespace, begin, f"{begin[:-1]}>"]  # `>` is the character after `=`
        where.append("seq = items.rollout")
    where += ["finished_at IS NOT NULL", "mode <> ?"]
    by_group = (
        f"SELECT {value} AS value, count(*) AS rollouts, count(reward) AS scored, sum(reward) AS rewards, "
        "max(reward) AS best, min(reward) AS worst, sum(tokens) AS tokens, sum(seconds) AS seconds, max(seq) AS newest, "
        f'min(task_kind) AS kind FROM {tables} WHERE {" AND ".join(where)} GROUP BY 1, coalesce("group", id), {_TASK}'
    )
    prompt = f"(SELECT {_PROMPT} FROM requests WHERE seq = newest)" if by == "task" and limit <= PROMPTS else "NULL"
    order = "mean IS NULL, mean, rollouts DESC" if by == "task" else "rollouts DESC, value"
    query = (
        "SELECT value, rollouts, scored, mean, best, tokens, seconds, groups, informative, "
        f"(SELECT id FROM rollouts WHERE seq = newest), kind, {prompt} FROM (SELECT value, sum(rollouts) AS rollouts, "
        "sum(scored) AS scored, sum(rewards) / nullif(sum(scored), 0) AS mean, max(best) AS best, "
        "coalesce(sum(tokens), 0) AS tokens, coalesce(sum(seconds), 0.0) AS seconds, sum(scored > 1) AS groups, "
        f"sum(scored > 1 AND best > worst) AS informative, max(newest) AS newest, min(kind) AS kind FROM ({by_group}) "
        f"GROUP BY value ORDER BY {order} LIMIT ?) ORDER BY {order}"
    )
    rows = db.execute(query, [*given, *values, CHECK, limit])
    return [RolloutSums(**dict(zip(RolloutSums.model_fields, row, strict=True))) for row in rows]


class RolloutWork(NamedTuple):
    """Work of one ended rollout."""

    summary: str
    """JSON; see RolloutRecord.summary."""
    queued: float
    """Seconds."""
    scored: bool


def work(db: sqlite3.Connection, filter: RolloutFilter, search: RolloutSearch) -> tuple[int, list[RolloutWork]]:
    """Return the number of ended rollouts that match, without checks, and the newest `filter.limit` of them."""
    where, values = _conditions(filter, search)
    where += ["finished_at IS NOT NULL", "mode <> ?"]
    found = f"FROM {_INDEX} WHERE {' AND '.join(where)}"
    values.append(CHECK)
    rows = db.execute(
        f"SELECT summary, queued_seconds, reward IS NOT NULL {found} ORDER BY seq DESC LIMIT ?", [*values, filter.limit]
    )
    newest = [RolloutWork(*row) for row in rows]
    if len(newest) < filter.limit:
        return len(newest), newest
    return count(db, filter, search, ended=True), newest


def count(db: sqlite3.Connection, filter: RolloutFilter, search: RolloutSearch, *, ended: bool = False) -> int:
    """Return the number of rollouts that match. `ended`: only of those that have ended, without checks."""
    where, values = _conditions(filter, search)
    if ended:
        where += ["finished_at IS NOT NULL", "mode <> ?"]
        values.append(CHECK)
    return int(db.execute(f"SELECT count(*) FROM {_INDEX} WHERE {' AND '.join(where)}", values).fetchone()[0])


class NodeEnd(NamedTuple):
    """End of one rollout on a node."""

    node: str
    fault: str | None
    """Reason, or else status, if there is no reward."""
    init: float | None
    """Seconds of INIT."""
    run: float | None


def ends_by_node(db: sqlite3.Connection, namespace: str, since: float) -> list[NodeEnd]:
    """Return the ends of rollouts since a time (Unix seconds), without those that never had a node."""
    query = (
        "SELECT node, CASE WHEN reward IS NULL THEN coalesce(reason, status) END, json_extract(summary, '$.init'), "
        f"json_extract(summary, '$.run') FROM {_INDEX} WHERE namespace = ? AND finished_at >= ? AND node IS NOT NULL"
    )
    return [NodeEnd(*row) for row in db.execute(query, (namespace, since))]


def losing_histories(db: sqlite3.Connection, namespace: str, since: float, limit: int) -> list[tuple[str, str]]:
    """Return id and history of the rollouts that may have had a loss since a time (Unix seconds), the newest first."""
    query = (
        "SELECT id, history FROM rollouts INDEXED BY rollouts_lost WHERE namespace = ? AND lost > 0 "
        "AND (finished_at IS NULL OR finished_at >= ?) ORDER BY seq DESC LIMIT ?"
    )
    return db.execute(query, (namespace, since, limit)).fetchall()


def _conditions(filter: RolloutFilter, search: RolloutSearch) -> tuple[list[str], list[Any]]:
    """Return SQL conditions and their values."""
    equal = {
        "namespace": filter.namespace,
        "pool": filter.pool,
        '"group"': filter.group,
        "task_kind": search.kind,
        "mode": search.mode,
        "reason": search.reason,
        "task": search.task,
    }
    given: list[tuple[str, Sequence[Any]]] = [(f"{name} = ?", [v]) for name, v in equal.items() if v is not None]
    if filter.status:
        given.append((f"status IN ({', '.join('?' * len(filter.status))})", [s.value for s in filter.status]))
    limits = {
        "(finished_at IS NULL OR finished_at >= ?)": search.since,
        "finished_at < ?": search.until,
        "reward >= ?": search.min_reward,
        "reward <= ?": search.max_reward,
    }
    given += [(condition, [value]) for condition, value in limits.items() if value is not None]
    if search.failed_calls or search.failed_tool is not None:
        given.append(("failed_calls > 0", []))
    if search.failed_tool is not None:
        tools = "SELECT 1 FROM json_each(summary, '$.profile.by_tool') AS used"
        failed = "json_extract(used.value, '$.tool') = ? AND json_extract(used.value, '$.failed') > 0"
        given.append((f"EXISTS ({tools} WHERE {failed})", [search.failed_tool]))
    if search.lost or search.lost_reason is not None:
        losing = "SELECT seq FROM rollouts INDEXED BY rollouts_lost WHERE namespace = ? AND lost > 0"
        given.append((f"seq IN ({losing})", [filter.namespace]))
    if search.lost_reason is not None:
        lines = "SELECT 1 FROM json_each('[' || replace(rtrim(history, char(10)), char(10), ',') || ']') AS line"
        event = f"json_extract(line.value, '$[1]') IN ({', '.join('?' * len(LOSS_EVENTS))})"
        reason = "json_extract(line.value, '$[4].reason') = ?"
        losing = f"{lines} WHERE line.type = 'array' AND {event} AND {reason}"
        given.append((f"EXISTS ({losing})", [*LOSS_EVENTS, search.lost_reason]))
    if search.prefix:
        given.append(("substr(id, 1, ?) = ?", [len(search.prefix), search.prefix]))
    if search.batch is not None:
        groups = "SELECT id FROM batch_groups INDEXED BY groups_of_batch WHERE namespace = ? AND batch = ?"
        given.append((f'"group" IN ({groups})', [filter.namespace, search.batch]))
    for item in filter.metadata:
        having = "SELECT rollout FROM metadata_items WHERE space = ? AND item = ?"
        given.append((f"seq IN ({having})", [filter.namespace, item]))
    if filter.suspicious:
        given.append((SUSPICIOUS, []))
    return [condition for condition, _ in given], [value for _, values in given for value in values]
