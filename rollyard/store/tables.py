"""The tables of the database.

The SQL of this module works with SQLite 3.24, which old clusters still have.

Every change of stored data, also of a field in a JSON body, raises SCHEMA. So no server reads a folder that it would
misunderstand: it refuses any other number. From the first release on, the schema of a release stays as it is, and a later
release brings a folder from it to its own schema.
"""

from __future__ import annotations

import secrets
import sqlite3

from rollyard.core.errors import Superseded, Unavailable

SCHEMA = 41
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID;

-- One row for each change. Versions are numbered without gaps, so a reader notices a missing row. Old rows are pruned,
-- but the last row stays, because the next version is computed from it.
CREATE TABLE changes (version INTEGER PRIMARY KEY, type TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);

CREATE TABLE rollouts (
    seq INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL, id TEXT NOT NULL, digest TEXT NOT NULL, pool TEXT NOT NULL, task_kind TEXT NOT NULL,
    "group" TEXT, sample_index INTEGER NOT NULL, mode TEXT NOT NULL, priority INTEGER NOT NULL, created_at REAL NOT NULL,
    status TEXT NOT NULL, stage TEXT NOT NULL, attempt INTEGER NOT NULL, faults INTEGER NOT NULL,
    losses INTEGER NOT NULL, fence INTEGER NOT NULL, holder TEXT, node TEXT, endpoints TEXT NOT NULL,
    queued_at REAL NOT NULL, not_before REAL NOT NULL, queued_seconds REAL NOT NULL,
    result TEXT, artifact TEXT, reward REAL, error TEXT, summary TEXT NOT NULL, finished_at REAL, cursor INTEGER,
    min_weights_version TEXT, weights TEXT, weights_version TEXT, outdated INTEGER NOT NULL DEFAULT 0,
    -- Order of the queue within a priority; see RolloutRecord.queue_rank.
    queue_rank REAL NOT NULL DEFAULT 0,
    -- Sandbox image in normal form; empty for the pool's default image.
    image TEXT NOT NULL DEFAULT '',
    -- Image of EVAL's sandbox in normal form; empty for that of RUN's sandbox.
    eval_image TEXT NOT NULL DEFAULT '',
    metadata TEXT NOT NULL DEFAULT '{}',
    -- Changes of the rollout so far; see RolloutRecord.history.
    history TEXT NOT NULL DEFAULT '',
    -- Digest of the task.
    task TEXT NOT NULL DEFAULT '',
    -- Parts of `error` and `summary`, by which rollouts are searched: the error's reason, sampled tokens, turns, seconds in
    -- all stages, failed tool calls.
    reason TEXT, tokens INTEGER, turns INTEGER, seconds REAL, suspicious INTEGER NOT NULL DEFAULT 0, failed_calls INTEGER,
    -- Number of its rows in `saved_turns`.
    saved_turns INTEGER NOT NULL DEFAULT 0,
    -- Weights versions of the stored tokens, joined with commas.
    sampled_by TEXT NOT NULL DEFAULT '',
    -- Number of lost attempts and leases after which the rollout went on.
    lost INTEGER NOT NULL DEFAULT 0
);
-- The rollouts' requests. A request may be large and never changes, but the row in `rollouts` is written at each step.
CREATE TABLE requests (seq INTEGER PRIMARY KEY, body TEXT NOT NULL);

CREATE UNIQUE INDEX rollouts_by_id ON rollouts (namespace, id);
-- This index has all columns by which rollouts are searched, so a search reads the table only for what it has found.
CREATE INDEX rollouts_searched ON rollouts (
    namespace, seq, id, pool, "group", task_kind, mode, status, reason, reward, tokens, turns, seconds, created_at,
    finished_at, task, suspicious, failed_calls
);
CREATE INDEX rollouts_by_pool ON rollouts (namespace, pool, seq);
CREATE INDEX rollouts_by_group ON rollouts (namespace, "group", seq) WHERE "group" IS NOT NULL;
CREATE INDEX rollouts_queued
    ON rollouts (namespace, pool, stage, priority DESC, queue_rank, seq, not_before, image, eval_image)
    WHERE status = 'Queued' AND holder IS NULL;
-- Checks need no model server, so they can be granted while those of all other rollouts are full.
CREATE INDEX rollouts_checks ON rollouts (namespace, pool, stage, priority DESC, queue_rank, seq)
    WHERE mode = 'check' AND cursor IS NULL;
CREATE INDEX rollouts_leased ON rollouts (holder) WHERE holder IS NOT NULL;
-- This index also has the columns of its WHERE condition. Otherwise SQLite would read the table as well.
CREATE INDEX rollouts_live ON rollouts (namespace, seq, pool, stage, status, cursor) WHERE cursor IS NULL;
CREATE INDEX rollouts_ended ON rollouts (namespace, pool, finished_at) WHERE cursor IS NOT NULL;
CREATE INDEX rollouts_with_artifact ON rollouts (namespace, pool, finished_at)
    WHERE cursor IS NOT NULL AND artifact IS NOT NULL;
CREATE UNIQUE INDEX rollouts_finished ON rollouts (cursor) WHERE cursor IS NOT NULL;
CREATE INDEX rollouts_finished_group ON rollouts (namespace, "group", cursor)
    WHERE cursor IS NOT NULL AND "group" IS NOT NULL;
-- A rollout without a loss has no entry, so it costs nothing.
CREATE INDEX rollouts_lost ON rollouts (namespace, seq, finished_at) WHERE lost > 0;
CREATE INDEX rollouts_demanding ON rollouts (namespace, pool, seq) WHERE weights IS NOT NULL AND cursor IS NULL;

-- Items of the tasks' metadata, such as difficulty=hard. `space` is the namespace, and `rollout` the seq of a rollout.
CREATE TABLE metadata_items (
    space TEXT NOT NULL, item TEXT NOT NULL, rollout INTEGER NOT NULL,
    PRIMARY KEY (space, item, rollout)
) WITHOUT ROWID;

-- Counts of terminal records. They are updated when a rollout ends, so that counting does not read them all.
CREATE TABLE tallies (
    namespace TEXT NOT NULL, pool TEXT NOT NULL, stage TEXT NOT NULL, status TEXT NOT NULL,
    records INTEGER NOT NULL, rewarded INTEGER NOT NULL, rewards REAL NOT NULL,
    PRIMARY KEY (namespace, pool, stage, status)
) WITHOUT ROWID;

-- Images that cannot be had now; see MissingImage.
CREATE TABLE missing_images (
    namespace TEXT NOT NULL, pool TEXT NOT NULL, image TEXT NOT NULL, message TEXT NOT NULL, permanent INTEGER NOT NULL,
    registry_down INTEGER NOT NULL, failures INTEGER NOT NULL, since REAL NOT NULL, until REAL NOT NULL,
    trying INTEGER NOT NULL,
    PRIMARY KEY (namespace, pool, image)
) WITHOUT ROWID;
CREATE TABLE queue_ranks (
    namespace TEXT NOT NULL, pool TEXT NOT NULL, served REAL NOT NULL, submitted REAL NOT NULL,
    PRIMARY KEY (namespace, pool)
) WITHOUT ROWID;

CREATE TABLE datasets (
    namespace TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, tasks INTEGER NOT NULL, kinds TEXT NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;
-- Tasks of datasets, of batches' requests and of plug-ins. A stored task never changes.
CREATE TABLE dataset_tasks (digest TEXT NOT NULL, idx INTEGER NOT NULL, body TEXT NOT NULL, UNIQUE (digest, idx));
CREATE TABLE task_history (
    namespace TEXT NOT NULL, dataset TEXT NOT NULL, idx INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (namespace, dataset, idx)
) WITHOUT ROWID;
CREATE TABLE series (
    namespace TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, dataset TEXT, body TEXT NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;

CREATE TABLE batches (
    seq INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL, id TEXT NOT NULL, digest TEXT NOT NULL, request TEXT NOT NULL, pool TEXT NOT NULL,
    series TEXT NOT NULL, created_at REAL NOT NULL, status TEXT NOT NULL, ended_at REAL, body TEXT NOT NULL
);
CREATE UNIQUE INDEX batches_by_id ON batches (namespace, id);
CREATE INDEX batches_running ON batches (status, seq) WHERE status = 'Running';
CREATE INDEX batches_ended ON batches (namespace, pool, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX batches_by_series ON batches (namespace, series);

CREATE TABLE batch_groups (
    namespace TEXT NOT NULL, id TEXT NOT NULL, series TEXT NOT NULL, number INTEGER NOT NULL, pool TEXT NOT NULL,
    n INTEGER NOT NULL, batch TEXT, state TEXT NOT NULL, delivery INTEGER, body TEXT NOT NULL,
    PRIMARY KEY (namespace, id)
) WITHOUT ROWID;
CREATE INDEX groups_of_batch ON batch_groups (namespace, batch, id) WHERE batch IS NOT NULL;
CREATE UNIQUE INDEX groups_delivered ON batch_groups (namespace, batch, delivery) WHERE delivery IS NOT NULL;
CREATE INDEX groups_live ON batch_groups (namespace, batch, number)
    WHERE batch IS NOT NULL AND state IN ('Open', 'Informative');
CREATE INDEX groups_carried ON batch_groups (namespace, series, number)
    WHERE batch IS NULL AND state IN ('Open', 'Informative');

-- Groups that a trainer has used; they may be deleted.
CREATE TABLE acknowledged_groups (
    namespace TEXT NOT NULL, id TEXT NOT NULL, acknowledged_at REAL NOT NULL,
    PRIMARY KEY (namespace, id)
) WITHOUT ROWID;
CREATE INDEX acknowledged_by_time ON acknowledged_groups (acknowledged_at);

-- Packs from which a record was deleted. Only these packs may be deleted or compacted. Packs that are newer than the
-- database are not in this table, so they stay if the database is restored from a backup. `unused_since`: time since
-- which no record names the pack.
CREATE TABLE loose_packs (pack TEXT PRIMARY KEY, unused_since REAL) WITHOUT ROWID;

-- Sessions of external agents. Of a removed session only the id and the reason are kept.
CREATE TABLE sessions (
    seq INTEGER PRIMARY KEY,
    instance TEXT NOT NULL UNIQUE, id TEXT NOT NULL, namespace TEXT NOT NULL, pool TEXT NOT NULL, request TEXT NOT NULL,
    created_at REAL NOT NULL, model TEXT NOT NULL, tokenizer TEXT NOT NULL,
    state TEXT NOT NULL, progress TEXT NOT NULL, idle_seconds REAL NOT NULL, why TEXT NOT NULL DEFAULT ''
);
CREATE INDEX sessions_removed ON sessions (id) WHERE state = 'Removed';
CREATE TABLE session_calls (
    instance TEXT NOT NULL, turn INTEGER NOT NULL, delivered INTEGER NOT NULL, body BLOB NOT NULL,
    UNIQUE (instance, turn)
);

-- Snapshots of rollouts' sandboxes. `rollout`: seq of the rollout. `blob`: null if there is no archive.
CREATE TABLE snapshots (
    rollout INTEGER NOT NULL, attempt INTEGER NOT NULL, turn INTEGER NOT NULL, blob TEXT, body TEXT NOT NULL,
    PRIMARY KEY (rollout, attempt, turn)
) WITHOUT ROWID;

-- Allocations whose jobs have ended; the objects are deleted sooner.
CREATE TABLE ended_allocations (
    seq INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, namespace TEXT NOT NULL, ended_at REAL NOT NULL, body TEXT NOT NULL
);
CREATE INDEX ended_allocations_by_time ON ended_allocations (ended_at);
-- Sums of ended rollouts; see UsageHour. They outlive the rollouts.
CREATE TABLE usage_hours (
    hour INTEGER NOT NULL, namespace TEXT NOT NULL, pool TEXT NOT NULL, rollouts INTEGER NOT NULL, scored INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL, sampled_tokens INTEGER NOT NULL,
    PRIMARY KEY (hour, namespace, pool)
) WITHOUT ROWID;

-- Metrics over time; see metric_tables.py. A track is a pool, or an endpoint of a pool. `seen`: an hour before the last
-- sample, or later.
CREATE TABLE tracks (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL, namespace TEXT NOT NULL, pool TEXT NOT NULL, endpoint TEXT NOT NULL, seen REAL NOT NULL,
    UNIQUE (namespace, pool, kind, endpoint)
);
CREATE TABLE buckets (
    resolution INTEGER NOT NULL, start INTEGER NOT NULL, track INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (resolution, start, track)
) WITHOUT ROWID;
CREATE TABLE buckets_made (resolution INTEGER PRIMARY KEY, until INTEGER NOT NULL);
CREATE TABLE scaling_decisions (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, pool TEXT NOT NULL, time REAL NOT NULL, desired INTEGER NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, pool, time, desired)
) WITHOUT ROWID;

-- Sums over the groups of one training step. They stay when the groups are deleted.
CREATE TABLE training_steps (
    namespace TEXT NOT NULL, series TEXT NOT NULL, step INTEGER NOT NULL, batch TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (namespace, series, step, batch)
) WITHOUT ROWID;
CREATE INDEX steps_of_batch ON training_steps (namespace, batch);

CREATE TABLE evaluations (
    seq INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL, name TEXT NOT NULL, created_at REAL NOT NULL, body TEXT NOT NULL, UNIQUE (namespace, name)
);
-- Results of evaluations' rollouts. They are inserted when a rollout ends, and outlive the rollouts. `repeated`: whether
-- another rollout takes the place of this one.
CREATE TABLE evaluation_results (
    namespace TEXT NOT NULL, evaluation TEXT NOT NULL, task TEXT NOT NULL, rollout TEXT NOT NULL,
    kind TEXT NOT NULL, metadata TEXT NOT NULL, status TEXT NOT NULL, reason TEXT, reward REAL, weights_version TEXT,
    tokens INTEGER, turns INTEGER, seconds REAL, finished_at REAL, repeated INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, evaluation, task, rollout)
) WITHOUT ROWID;

-- Turns of rollouts in RUN, with which another node agent can go on. `rollout`: seq of the rollout. They are deleted in the
-- transaction that ends RUN or the attempt. `body`: a compressed SavedTurn.
CREATE TABLE saved_turns (
    rollout INTEGER NOT NULL, turn INTEGER NOT NULL, body BLOB NOT NULL,
    UNIQUE (rollout, turn)
);
-- What belongs to the turns of one rollout. `blob`: archive of the newest snapshot; null if there is none. `snapshot`: its
-- RolloutSnapshot. `resumptions`: a list of JSON.
CREATE TABLE resume_states (
    rollout INTEGER PRIMARY KEY, namespace TEXT NOT NULL, pool TEXT NOT NULL, turn_bytes INTEGER NOT NULL,
    snapshot_bytes INTEGER NOT NULL DEFAULT 0, blob TEXT, snapshot TEXT,
    resumptions TEXT NOT NULL DEFAULT '[]'
);
-- Sums of `resume_states` by pool.
CREATE TABLE resume_totals (
    namespace TEXT NOT NULL, pool TEXT NOT NULL, turn_bytes INTEGER NOT NULL, snapshot_bytes INTEGER NOT NULL,
    PRIMARY KEY (namespace, pool)
) WITHOUT ROWID;
"""


def prepare(db: sqlite3.Connection) -> None:
    """Make the tables in an empty database. Raises Unavailable if the database has another schema."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0:
        # Tables and number are in one transaction, so a crash leaves either an empty database or the whole schema.
        db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
    elif version != SCHEMA:
        raise Unavailable(
            f"the data folder has schema {version}, and this version of Rollyard reads {SCHEMA} alone; start with a new "
            "folder, and keep this one for the version that wrote it"
        )


def is_new(db: sqlite3.Connection) -> bool:
    """Whether the database has no schema yet."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return bool(version == 0)


def begin_epoch(db: sqlite3.Connection, above: int = 0) -> tuple[int, str]:
    """Begin a new epoch. Return its number, which is greater than `above`, and the server id.

    The first call for a database creates the server id.
    """
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT OR IGNORE INTO meta VALUES ('server_id', ?), ('epoch', '0')", (secrets.token_hex(6),))
    db.execute("UPDATE meta SET value = max(CAST(value AS INTEGER), ?) + 1 WHERE name = 'epoch'", (above,))
    meta = dict(db.execute("SELECT name, value FROM meta"))
    db.execute("COMMIT")
    return int(meta["epoch"]), str(meta["server_id"])


def last_epoch(db: sqlite3.Connection) -> int:
    """Return the last epoch; 0 before the first epoch."""
    row = db.execute("SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'epoch'").fetchone()
    return int(row[0]) if row else 0


def check_epoch(db: sqlite3.Connection, epoch: int) -> None:
    """Raise Superseded if another epoch has begun.

    In a write transaction the check stays valid until the transaction ends: before that, no other process can begin an
    epoch.
    """
    newest = last_epoch(db)
    if newest != epoch:
        raise Superseded(
            f"a newer server uses this data folder (its epoch is {newest}, the epoch of this server {epoch})"
        )
