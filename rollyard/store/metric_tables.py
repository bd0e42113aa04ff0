"""Metrics of pools and endpoints over time, scaling decisions, and the sums of training steps.

A track is what is stored about one pool or one endpoint. One transaction stores a sample of every track, makes the coarser
buckets that have become whole, and deletes what is too old. So a crash leaves all of it or nothing, and a bucket is never
counted twice: its key is its track and its time. Rows are ordered by time first, so that a sample of many tracks changes
few pages, and old rows lie together.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from rollyard.store.metric_buckets import (
    ENDPOINTS,
    HOUR,
    POOLS,
    Bucket,
    Resolution,
    decode,
    encode,
    roll_up,
    roll_up_rows,
    start_of,
)
from rollyard.store.read_connections import Readers
from rollyard.store.writer import Writer, WriteUnit

MAX_TRACKS = 10_000
"""Greatest number of tracks, counting those that only have old buckets. Beyond it, new pools and endpoints are not stored."""
MAX_DECISIONS = 1000
"""Greatest number of scaling decisions that are kept of a pool, the newest."""
KEPT = max(resolution.kept for resolution in POOLS)
Rows = list[tuple[int, Bucket]]
"""Buckets with their start (Unix seconds), in order of time."""


class TrackKey(NamedTuple):
    """`endpoint`: id of the endpoint; empty for the pool itself."""

    kind: str
    namespace: str
    pool: str
    endpoint: str = ""

    @property
    def resolutions(self) -> tuple[Resolution, ...]:
        return ENDPOINTS if self.endpoint else POOLS


class StoredDecision(NamedTuple):
    """Change of a pool's desired size. `time`: Unix seconds."""

    kind: str
    namespace: str
    pool: str
    time: float
    desired: int
    message: str


@dataclass(frozen=True, slots=True)
class BucketRange:
    """Buckets of width `step` from `since` to before `until`; all three are whole numbers of seconds."""

    since: int
    until: int
    step: int


class MetricTables:
    """Store of metrics over time. All methods raise Unavailable."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def record(
        self, now: float, samples: Sequence[tuple[TrackKey, Bucket]], decisions: Sequence[StoredDecision] = ()
    ) -> None:
        """Store a sample of each track at `now` (Unix seconds), and decisions. Stored decisions stay as they are."""
        await self._writer.call(partial(_record, now, samples, decisions))

    async def tracks(self, namespace: str, pool: str) -> list[TrackKey]:
        """Return the tracks of the pools of this name, and of their endpoints."""
        query = "SELECT kind, namespace, pool, endpoint FROM tracks WHERE namespace = ? AND pool = ? ORDER BY endpoint, kind"
        return await self._readers.call(lambda db: [TrackKey(*row) for row in db.execute(query, (namespace, pool))])

    async def read(self, keys: Sequence[TrackKey], span: BucketRange) -> list[Rows]:
        """Return the buckets of each track. The last bucket may still grow."""
        return await self._readers.call(lambda db: [_read(db, key, span) for key in keys])

    async def decisions(self, kind: str, namespace: str, pool: str, since: float, until: float) -> list[StoredDecision]:
        """Return the decisions about a pool's size, oldest first."""
        query = (
            "SELECT kind, namespace, pool, time, desired, message FROM scaling_decisions "
            "WHERE kind = ? AND namespace = ? AND pool = ? AND time >= ? AND time < ? ORDER BY time"
        )
        values = (kind, namespace, pool, since, until)
        return await self._readers.call(lambda db: [StoredDecision(*row) for row in db.execute(query, values)])


def _record(
    now: float, samples: Sequence[tuple[TrackKey, Bucket]], decisions: Sequence[StoredDecision], unit: WriteUnit
) -> None:
    db = unit.db
    old = "(endpoint = '' AND seen < ?) OR (endpoint <> '' AND seen < ?)"
    db.execute(f"DELETE FROM tracks WHERE {old}", (now - KEPT - 2 * HOUR, now - ENDPOINTS[-1].kept - 2 * HOUR))
    for key, bucket in samples:
        track = _track(db, key, now)
        if track is not None:
            finest = key.resolutions[0]
            _put(db, finest, start_of(now, finest.step), track, bucket)
    for resolutions in (POOLS, ENDPOINTS):
        for finer, coarser in pairwise(resolutions):
            _roll_up(db, finer, coarser, now)
        for one in resolutions:
            db.execute(
                "DELETE FROM buckets WHERE resolution = ? AND start < ?", (one.number, now - one.kept - one.step)
            )
    _record_decisions(db, decisions, now)


def _track(db: sqlite3.Connection, key: TrackKey, now: float) -> int | None:
    """Return the number of a track. A new one gets a number, unless there are MAX_TRACKS."""
    row = db.execute(
        "SELECT id, seen FROM tracks WHERE namespace = ? AND pool = ? AND kind = ? AND endpoint = ?",
        (key.namespace, key.pool, key.kind, key.endpoint),
    ).fetchone()
    if row is None:
        (count,) = db.execute("SELECT count(*) FROM tracks").fetchone()
        if count >= MAX_TRACKS:
            return None
        return db.execute(
            "INSERT INTO tracks (kind, namespace, pool, endpoint, seen) VALUES (?, ?, ?, ?, ?)", (*key, now)
        ).lastrowid
    track, seen = row
    if seen < now - HOUR:  # once an hour, so that most samples do not write this row
        db.execute("UPDATE tracks SET seen = ? WHERE id = ?", (now, track))
    return int(track)


def _roll_up(db: sqlite3.Connection, finer: Resolution, coarser: Resolution, now: float) -> None:
    """Make the coarser buckets that have ended since the last call."""
    made, whole = _made_until(db, coarser), start_of(now, coarser.step)
    if made == whole:
        return
    rows = db.execute(
        "SELECT start, track, body FROM buckets WHERE resolution = ? AND start >= ? AND start < ? ORDER BY start",
        (finer.number, made or 0, whole),
    )
    spans: dict[tuple[int, int], list[Bucket]] = {}
    for start, track, body in rows.fetchall():
        spans.setdefault((start_of(start, coarser.step), track), []).append(decode(body))
    for (start, track), buckets in spans.items():
        _put(db, coarser, start, track, roll_up(buckets))
    db.execute("INSERT OR REPLACE INTO buckets_made VALUES (?, ?)", (coarser.number, whole))


def _made_until(db: sqlite3.Connection, resolution: Resolution) -> int | None:
    """Return the time before which all buckets of this resolution are made; None before the first time."""
    row = db.execute("SELECT until FROM buckets_made WHERE resolution = ?", (resolution.number,)).fetchone()
    return int(row[0]) if row else None


def _put(db: sqlite3.Connection, resolution: Resolution, start: int, track: int, bucket: Bucket) -> None:
    values = (resolution.number, start, track, encode(bucket))
    db.execute("INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, ?)", values)


def _record_decisions(db: sqlite3.Connection, decisions: Sequence[StoredDecision], now: float) -> None:
    for one in decisions:
        if db.execute("INSERT OR IGNORE INTO scaling_decisions VALUES (?, ?, ?, ?, ?, ?)", one).rowcount:
            pool = one[:3]
            db.execute(
                "DELETE FROM scaling_decisions WHERE kind = ? AND namespace = ? AND pool = ? AND time <= (SELECT time FROM "
                "scaling_decisions WHERE kind = ? AND namespace = ? AND pool = ? ORDER BY time DESC LIMIT 1 OFFSET ?)",
                (*pool, *pool, MAX_DECISIONS),
            )
            db.execute("DELETE FROM scaling_decisions WHERE time < ?", (now - KEPT,))


def _read(db: sqlite3.Connection, key: TrackKey, span: BucketRange) -> Rows:
    place = (key.namespace, key.pool, key.kind, key.endpoint)
    row = db.execute(
        "SELECT id FROM tracks WHERE namespace = ? AND pool = ? AND kind = ? AND endpoint = ?", place
    ).fetchone()
    if row is None:
        return []
    fitting = [i for i, one in enumerate(key.resolutions) if span.step % one.step == 0]
    return roll_up_rows(_rows(db, row[0], key.resolutions[: fitting[-1] + 1], span.since, span.until), span.step)


def _rows(db: sqlite3.Connection, track: int, resolutions: Sequence[Resolution], since: int, until: int) -> Rows:
    """Return the buckets of the last of these resolutions. Those that are not made yet are made from finer ones."""
    *finer, one = resolutions
    made = _made_until(db, one) if finer else until
    whole = since if made is None else min(until, max(made, since))
    found = [
        (start, decode(body))
        for start, body in db.execute(
            "WITH RECURSIVE starts (at) AS (SELECT ? UNION ALL SELECT at + ? FROM starts WHERE at + ? < ?) "
            "SELECT start, body FROM starts JOIN buckets ON resolution = ? AND start = at AND track = ? WHERE at < ? "
            "ORDER BY at",
            (start_of(since, one.step), one.step, one.step, whole, one.number, track, whole),
        )
    ]
    if not finer or whole >= until:
        return found
    return [*found, *roll_up_rows(_rows(db, track, finer, whole, until), one.step)]
