"""Rollouts in a write transaction: single records, the queue and its ranks, leases, and versions of the weights."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from rollyard.core.errors import Conflict
from rollyard.core.replaced_fields import replace
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import CHECK, STAGES_LAST_FIRST, Stage
from rollyard.store import (
    evaluation_store,
    metadata_items,
    missing_image_rows,
    row_codec,
    saved_turn_table,
    snapshot_table,
    usage_hours,
)
from rollyard.store.base import (
    BlobRef,
    GroupVersions,
    MissingImage,
    QueueRanks,
    RolloutRecord,
    StoredSnapshot,
    VersionBound,
)
from rollyard.store.batch_transaction import BatchTransaction
from rollyard.store.rollout_queries import RolloutQueries
from rollyard.store.writer import WriteUnit


class Transaction(RolloutQueries):
    """Operations inside `RolloutStore.transact`, on the writer's connection. They run in the thread of the store's writer, and
    block no other thread. Do not use them after the transaction has ended."""

    def __init__(self, unit: WriteUnit) -> None:
        super().__init__(unit.db)
        self.batches = BatchTransaction(unit.db)
        self._packs = unit.packs
        self._cursor: int | None = None
        """Newest cursor; None before the first terminal record of this transaction. A query for each record would take
        longer."""

    def put(self, record: RolloutRecord) -> RolloutRecord:
        """Insert or replace a record. Sets `seq`; for a terminal record also `cursor`.

        Raises Conflict if the stored record is already terminal.
        """
        if record.status.terminal:
            record = replace(record, cursor=self._next_cursor())
        if record.seq:
            self._replace(record)
        else:
            record = self._insert(record)
        if record.status.terminal:
            self._update_counts(record)
            usage_hours.add(self._db, record)
            evaluation_store.add_result(self._db, record)
        return record

    def _insert(self, record: RolloutRecord) -> RolloutRecord:
        try:
            seq = self._db.execute(row_codec.INSERT, row_codec.to_row(record)).lastrowid
        except sqlite3.IntegrityError:
            there = self.get(record.namespace, record.id)
            if there is None:
                raise
            record = replace(record, seq=there.seq)
            self._replace(record)
            return record
        assert seq is not None
        self._db.execute("INSERT INTO requests VALUES (?, ?)", (seq, record.request))
        metadata_items.insert(self._db, record, seq)
        return replace(record, seq=seq)

    def _replace(self, record: RolloutRecord) -> None:
        done = self._db.execute(row_codec.UPDATE, [*row_codec.to_moving(record), record.seq])
        if done.rowcount != 1:
            raise Conflict(f"rollout {record.id!r} in namespace {record.namespace!r} has ended; its record is final")

    def _next_cursor(self) -> int:
        newest = self._cursor if self._cursor is not None else self.newest_cursor()
        self._cursor = newest + 1
        return self._cursor

    def _update_counts(self, record: RolloutRecord) -> None:
        reward = record.reward if record.mode != CHECK else None  # the mean reward is that of policies
        self._db.execute(
            "INSERT INTO tallies VALUES (?, ?, ?, ?, 1, ?, ?) "
            "ON CONFLICT (namespace, pool, stage, status) DO UPDATE SET records = records + 1, "
            "rewarded = rewarded + excluded.rewarded, rewards = rewards + excluded.rewards",
            (record.namespace, record.pool, record.stage.value, record.status.value, reward is not None, reward or 0.0),
        )

    def queued(
        self,
        pools: Sequence[PoolKey],
        stages: Sequence[Stage],
        now: float,
        limit: int,
        *,
        kinds: Collection[str] | None = None,
        minima: Collection[str] | None = None,
        losses_below: int | None = None,
        default_image: str | None = None,
        after: RolloutRecord | None = None,
        mode: str | None = None,
    ) -> list[RolloutRecord]:
        """Records that wait for a lease in these pools. Records in back-off at `now` are left out.

        The order is: EVAL before INIT, then priority, then rank, then arrival. `kinds`: only these task kinds. `minima`:
        only records without a minimum version or with one of these minimum versions. `losses_below`: only records with
        fewer losses. `default_image`: only records whose image is not held at `now`; this is the image of the records
        that name none. None: all records. `after`: in each stage only records behind this record. `mode`:
        CHECK for checks alone.
        """
        found: list[RolloutRecord] = []
        if kinds is not None and not kinds:
            return found  # no kind can match, and with an empty list SQLite cannot use the index that the query names
        also, values = _queue_conditions(kinds, minima, losses_below, after)
        for stage in (s for s in STAGES_LAST_FIRST if s in stages):
            room = limit - len(found)
            if room <= 0:
                break
            lines = [
                self._queue_rows(mode, also + triable, [*pool, stage.value, now, *values, *image_values, room])
                for pool in pools
                for triable, image_values in [_image_condition(pool, stage, default_image, now)]
            ]
            found.extend(islice(merge(*lines, key=lambda r: (-r.priority, r.queue_rank, r.seq)), room))
        return found

    def _queue_rows(self, mode: str | None, also: str, values: Sequence[object]) -> list[RolloutRecord]:
        index, of_mode = (
            ("rollouts_checks", "mode = 'check' AND cursor IS NULL AND ") if mode else ("rollouts_queued", "")
        )
        query = (
            f"{row_codec.select(index)} WHERE {of_mode}status = 'Queued' AND holder IS NULL AND namespace = ? AND pool = ? "
            f"AND stage = ? AND not_before <= ? {also} ORDER BY priority DESC, queue_rank, seq LIMIT ?"
        )
        return [row_codec.from_row(r) for r in self._db.execute(query, values)]

    def queued_of_image(self, pool: PoolKey, image: str, created_before: float, limit: int) -> list[RolloutRecord]:
        """Records with this value of `image` or, if it is not empty, of `eval_image`, that wait for INIT and were created
        before this time (Unix seconds)."""
        query = (
            f"{row_codec.select('rollouts_queued')} WHERE status = 'Queued' AND holder IS NULL AND namespace = ? "
            "AND pool = ? AND stage = 'INIT' AND (image = ? OR eval_image = ?) AND created_at <= ? LIMIT ?"
        )
        values = (*pool, image, image or None, created_before, limit)
        return [row_codec.from_row(r) for r in self._db.execute(query, values)]

    def put_missing_image(self, missing: MissingImage) -> None:
        self._db.execute(missing_image_rows.PUT, missing_image_rows.to_row(missing))

    def delete_missing_image(self, pool: PoolKey, image: str) -> bool:
        """Return whether it was stored."""
        delete = "DELETE FROM missing_images WHERE namespace = ? AND pool = ? AND image = ?"
        return self._db.execute(delete, (*pool, image)).rowcount > 0

    def held(self, holder: str | None = None) -> list[RolloutRecord]:
        """Leased records, of one holder or of all."""
        where, values = ("IS NOT NULL", []) if holder is None else ("= ?", [holder])
        found = self._db.execute(f"{row_codec.select('rollouts_leased')} WHERE holder {where} ORDER BY seq", values)
        return [row_codec.from_row(r) for r in found]

    def version_bound(self, pool: PoolKey) -> list[VersionBound]:
        """Live records of this pool with a constraint on weights (`RolloutRecord.weights`)."""
        return [row_codec.version_bound_from(r) for r in self._db.execute(row_codec.VERSION_BOUND_QUERY, pool)]

    def group_versions(self, namespace: str, group: str) -> GroupVersions:
        """Versions from which the rollouts of a group were sampled or are being sampled."""
        found: dict[bool, set[str]] = {True: set(), False: set()}
        for stage, ended, version in self._db.execute(
            "SELECT DISTINCT stage, cursor IS NOT NULL, weights_version FROM rollouts INDEXED BY rollouts_by_group "
            'WHERE namespace = ? AND "group" = ? AND weights_version IS NOT NULL '
            "AND status NOT IN ('Cancelled', 'InfraFailed')",
            (namespace, group),
        ):
            found[bool(ended) or stage == Stage.EVAL].add(version)
        return GroupVersions(frozenset(found[True]), frozenset(found[False]))

    def queue_ranks(self, pool: PoolKey) -> QueueRanks:
        query = "SELECT served, submitted FROM queue_ranks WHERE namespace = ? AND pool = ?"
        row = self._db.execute(query, pool).fetchone()
        return QueueRanks(*row) if row else QueueRanks()

    def put_queue_ranks(self, pool: PoolKey, ranks: QueueRanks) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO queue_ranks VALUES (?, ?, ?, ?)", (*pool, ranks.served, ranks.submitted)
        )

    def add_blob(self, data: bytes) -> BlobRef:
        return self._packs.add(data)

    def drop_blob(self, blob: BlobRef) -> None:
        """Record that a record will no longer name a blob, so that its pack may become smaller."""
        self._db.execute("INSERT OR IGNORE INTO loose_packs VALUES (?, NULL)", (blob.pack,))

    def put_snapshot(self, record: RolloutRecord, snapshot: StoredSnapshot) -> None:
        """Insert or replace a snapshot of the rollout's present attempt. Those of earlier attempts are deleted."""
        snapshot_table.put(self._db, record, snapshot)

    def delete_snapshots_after(self, record: RolloutRecord, turn: int) -> None:
        snapshot_table.delete_after(self._db, record, turn)

    def put_turns(
        self, record: RolloutRecord, kept: int, bodies: Sequence[bytes], resumption: dict[str, Any] | None = None
    ) -> None:
        """Store turns behind the first `kept` ones, as `saved_turn_table.put_turns`."""
        saved_turn_table.put_turns(self._db, record, kept, bodies, resumption)

    def put_resume_snapshot(self, record: RolloutRecord, snapshot: StoredSnapshot) -> None:
        """Store the newest snapshot from which another node agent can go on. Its turn must be stored."""
        saved_turn_table.put_snapshot(self._db, record, snapshot)

    def delete_turns(self, record: RolloutRecord) -> None:
        """Delete the saved turns of a rollout and their snapshot."""
        saved_turn_table.delete(self._db, record)


def _image_condition(pool: PoolKey, stage: Stage, default_image: str | None, now: float) -> tuple[str, list[object]]:
    if default_image is None or stage is not Stage.INIT:
        return "", []
    triable, values = missing_image_rows.triable_condition(pool, default_image, now)
    return f" {triable}", values


def _queue_conditions(
    kinds: Collection[str] | None,
    minima: Collection[str] | None,
    losses_below: int | None,
    after: RolloutRecord | None,
) -> tuple[str, list[object]]:
    """Return further SQL conditions on a queue, and their values."""
    also, values = "", list[object]()
    if kinds is not None:
        also, values = f"AND task_kind IN ({', '.join('?' * len(kinds))})", [*kinds]
    if minima is not None:
        also += f" AND (min_weights_version IS NULL OR min_weights_version IN ({', '.join('?' * len(minima))}))"
        values += minima
    if losses_below is not None:
        also += " AND losses < ?"
        values.append(losses_below)
    if after is not None:
        # SQLite can use the index only for `priority <= ?`, not for the part in brackets.
        also += " AND priority <= ? AND (priority < ? OR queue_rank > ? OR (queue_rank = ? AND seq > ?))"
        values += [after.priority, after.priority, after.queue_rank, after.queue_rank, after.seq]
    return also, values
