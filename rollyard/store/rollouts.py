"""Rollout rows: what `Transaction` promises inside the writer, and the same rows for readers."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from rollyard.errors import Conflict
from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.store.base import BlobRef, RolloutFilter, RolloutRecord
from rollyard.store.writer import Unit

COLUMNS = tuple(f.name for f in dataclasses.fields(RolloutRecord) if f.name != "request")
_FIXED = {"namespace", "id", "digest", "pool", "task_kind", "group", "sample_index", "mode", "created_at", "seq"}
_MOVING = tuple(name for name in COLUMNS if name not in _FIXED)
_LIST = ", ".join(f'r."{name}"' for name in COLUMNS)
_SELECT = f"SELECT {_LIST}, q.body FROM rollouts r JOIN requests q ON q.seq = r.seq"
_INSERT = f"""INSERT INTO rollouts ({", ".join(f'"{n}"' for n in COLUMNS)}) VALUES ({", ".join("?" * len(COLUMNS))})"""
_UPDATE = f"UPDATE rollouts SET {', '.join(f'{n} = ?' for n in _MOVING)} WHERE seq = ? AND cursor IS NULL"
_STAGES = {Stage.EVAL: 0, Stage.RUN: 1, Stage.INIT: 2}
"""What is nearer to its end goes first."""


class RolloutRows:
    """A `Transaction`: lives as long as one change in the writer."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._db = unit.db

    def get(self, namespace: str, id: str) -> RolloutRecord | None:
        return get(self._db, namespace, id)

    def put(self, record: RolloutRecord) -> RolloutRecord:
        if record.status.terminal and record.cursor is None:
            (last,) = self._db.execute("SELECT max(cursor) FROM rollouts WHERE cursor IS NOT NULL").fetchone()
            record = dataclasses.replace(record, cursor=(last or 0) + 1)
        if record.seq == 0:
            record = self._insert(record)
        elif self._db.execute(_UPDATE, [*_values(record, _MOVING), record.seq]).rowcount != 1:
            raise Conflict(f"rollout {record.id} has ended; its record stays as it is")
        if record.status.terminal:
            self._tally(record)
        return record

    def queued(
        self, pools: Sequence[tuple[str, str]], stages: Sequence[Stage], now: float, limit: int
    ) -> list[RolloutRecord]:
        where = """WHERE r.status = 'Queued' AND r.holder IS NULL AND r.namespace = ? AND r.pool = ? AND r.stage = ?
                   AND r.not_before <= ? ORDER BY r.priority DESC, r.seq LIMIT ?"""
        found = [
            record
            for namespace, pool in pools
            for stage in stages
            for record in _read(self._db, where, (namespace, pool, stage.value, now, limit))
        ]
        return sorted(found, key=lambda r: (_STAGES[r.stage], -r.priority, r.seq))[:limit]

    def held(self, holder: str | None = None) -> list[RolloutRecord]:
        if holder is None:
            return _read(self._db, "WHERE r.holder IS NOT NULL", ())
        return _read(self._db, "WHERE r.holder = ?", (holder,))

    def sessions(self) -> dict[str, int]:
        rows = self._db.execute(
            "SELECT endpoints, count(*) FROM rollouts WHERE holder IS NOT NULL AND stage <> 'EVAL' GROUP BY endpoints"
        )
        counts: dict[str, int] = {}
        for endpoints, n in rows:
            for endpoint in json.loads(endpoints).values():
                counts[endpoint] = counts.get(endpoint, 0) + n
        return counts

    def add_blob(self, data: bytes) -> BlobRef:
        return self._unit.packs.add(data)

    def _insert(self, record: RolloutRecord) -> RolloutRecord:
        (last,) = self._db.execute("SELECT max(seq) FROM rollouts").fetchone()
        record = dataclasses.replace(record, seq=(last or 0) + 1)
        self._db.execute(_INSERT, _values(record, COLUMNS))
        self._db.execute("INSERT INTO requests VALUES (?, ?)", (record.seq, record.request))
        return record

    def _tally(self, record: RolloutRecord) -> None:
        self._db.execute(
            """INSERT INTO tallies VALUES (?, ?, ?, ?, 1, ?, ?) ON CONFLICT DO UPDATE SET
               records = records + 1, rewarded = rewarded + excluded.rewarded, rewards = rewards + excluded.rewards""",
            (
                record.namespace,
                record.pool,
                record.stage.value,
                record.status.value,
                int(record.reward is not None),
                record.reward or 0.0,
            ),
        )


def get(db: sqlite3.Connection, namespace: str, id: str) -> RolloutRecord | None:
    found = _read(db, "WHERE r.namespace = ? AND r.id = ?", (namespace, id))
    return found[0] if found else None


def find(db: sqlite3.Connection, filter: RolloutFilter) -> list[RolloutRecord]:
    """By order of arrival."""
    terms: list[tuple[str, Any]] = [("r.seq > ?", filter.after_seq)]
    for column, value in (("namespace", filter.namespace), ("pool", filter.pool), ("group", filter.group)):
        if value is not None:
            terms.append((f'r."{column}" = ?', value))
    where = " AND ".join(term for term, _ in terms)
    values = [value for _, value in terms]
    if filter.status:
        where += f" AND r.status IN ({', '.join('?' * len(filter.status))})"
        values += [s.value for s in filter.status]
    return _read(db, f"WHERE {where} ORDER BY r.seq LIMIT ?", (*values, filter.limit))


def finished(
    db: sqlite3.Connection, after: int, limit: int, namespace: str | None, group: str | None
) -> list[RolloutRecord]:
    where, values = "r.cursor IS NOT NULL AND r.cursor > ?", [after]
    terms: list[Any] = list(values)
    if namespace is not None:
        where, terms = f"{where} AND r.namespace = ?", [*terms, namespace]
    if group is not None:
        where, terms = f'{where} AND r."group" = ?', [*terms, group]
    return _read(db, f"WHERE {where} ORDER BY r.cursor LIMIT ?", (*terms, limit))


def counts(
    db: sqlite3.Connection, namespace: str, pool: str | None, group: str | None
) -> dict[tuple[Stage, Status], int]:
    """Terminal records come from the tallies; only a group's are counted one by one."""
    if group is not None:
        rows = db.execute(
            'SELECT stage, status, count(*) FROM rollouts WHERE namespace = ? AND "group" = ? AND pool = ifnull(?, pool) '
            "GROUP BY stage, status",
            (namespace, group, pool),
        )
    else:
        rows = db.execute(
            """SELECT stage, status, count(*) FROM rollouts
               WHERE cursor IS NULL AND namespace = ?1 AND pool = ifnull(?2, pool) GROUP BY stage, status
               UNION ALL SELECT stage, status, sum(records) FROM tallies
               WHERE namespace = ?1 AND pool = ifnull(?2, pool) GROUP BY stage, status""",
            (namespace, pool),
        )
    return {(Stage(stage), Status(status)): n for stage, status, n in rows}


def reward_mean(db: sqlite3.Connection, namespace: str, pool: str | None, group: str | None) -> float | None:
    if group is not None:
        query = 'SELECT avg(reward) FROM rollouts WHERE namespace = ? AND "group" = ? AND pool = ifnull(?, pool)'
        (mean,) = db.execute(query, (namespace, group, pool)).fetchone()
        return mean if mean is None else float(mean)
    query = "SELECT sum(rewards), sum(rewarded) FROM tallies WHERE namespace = ? AND pool = ifnull(?, pool)"
    total, n = db.execute(query, (namespace, pool)).fetchone()
    return total / n if n else None


def _read(db: sqlite3.Connection, where: str, values: Sequence[Any]) -> list[RolloutRecord]:
    return [_record(row) for row in db.execute(f"{_SELECT} {where}", values)]


def _values(record: RolloutRecord, names: Sequence[str]) -> list[Any]:
    return [_encode(getattr(record, name)) for name in names]


def _encode(value: Any) -> Any:
    match value:
        case Status() | Stage():
            return value.value
        case BlobRef():
            return json.dumps(dataclasses.astuple(value))
        case RolloutError():
            return value.model_dump_json()
        case dict():
            return json.dumps(value, sort_keys=True)
        case _:
            return value


def _record(row: Sequence[Any]) -> RolloutRecord:
    *columns, request = row
    fields = dict(zip(COLUMNS, columns, strict=True))
    fields["status"], fields["stage"] = Status(fields["status"]), Stage(fields["stage"])
    fields["endpoints"], fields["summary"] = json.loads(fields["endpoints"]), json.loads(fields["summary"])
    for name in ("run", "result"):
        if fields[name] is not None:
            fields[name] = BlobRef(*json.loads(fields[name]))
    if fields["error"] is not None:
        fields["error"] = RolloutError.model_validate_json(fields["error"])
    return RolloutRecord(request=request, **fields)
