"""Queries about rollouts, for the read connections and for the writer. Each method except `queue_places`,
`count_without_image`, `needs_of_missing_images`, `images_needed` and `saved_turns` is one statement, so it reads a single state
of the store. Saved turns are read for the holder of the lease, who alone changes them."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutSums, Stage, Status
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.kinds.values.image_reference import normal_form
from rollyard.store import missing_image_rows, rollout_search, row_codec, saved_turn_table, usage_hours
from rollyard.store.base import MissingImage, RolloutFilter, RolloutRecord, RolloutSearch, StoredSnapshot
from rollyard.store.rollout_search import SUSPICIOUS, NodeEnd, RolloutWork
from rollyard.store.saved_turn_table import ResumeState, SomeTurns
from rollyard.store.usage_hours import UsageHour

Counts = dict[tuple[Stage, Status], int]

_BY_ID = f"{row_codec.select('rollouts_by_id')} WHERE namespace = ? AND id = ?"

_HAS_ITEM = (
    " AND EXISTS (SELECT 1 FROM metadata_items AS other WHERE other.space = ? AND other.item = ? "
    "AND other.rollout = seq)"
)


class RolloutQueries:
    """Queries on one connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def get(self, namespace: str, id: str) -> RolloutRecord | None:
        row = self._db.execute(_BY_ID, (namespace, id)).fetchone()
        return row_codec.from_row(row) if row else None

    def snapshots(self, record: RolloutRecord) -> list[StoredSnapshot]:
        """Snapshots of the rollout's present or last attempt, in the order of the turns."""
        query = "SELECT blob, body FROM snapshots WHERE rollout = ? AND attempt = ? ORDER BY turn"
        return [
            StoredSnapshot(
                RolloutSnapshot.model_validate_json(body, extra="ignore"), row_codec.blob_of(blob) if blob else None
            )
            for blob, body in self._db.execute(query, (record.seq, record.attempt))
        ]

    def resume_state(self, record: RolloutRecord) -> ResumeState:
        """Return the snapshot and the resumptions that belong to the saved turns of a rollout."""
        return saved_turn_table.state(self._db, record.seq)

    def saved_turns(self, record: RolloutRecord) -> tuple[ResumeState, list[bytes]]:
        """Saved turns of the rollout, the first one first, with what belongs to them."""
        return saved_turn_table.state(self._db, record.seq), saved_turn_table.turns(self._db, record.seq)

    def some_saved_turns(self, namespace: str, id: str, fence: int, after: int, most: int) -> SomeTurns | None:
        """Some of the saved turns; see `saved_turn_table.some_turns`."""
        return saved_turn_table.some_turns(self._db, namespace, id, fence, after, most)

    def resume_totals(self, pool: PoolKey) -> tuple[int, int]:
        """Bytes of the saved turns of a pool's rollouts, and those of their snapshots."""
        return saved_turn_table.totals(self._db, pool)

    def all_resume_totals(self) -> dict[PoolKey, tuple[int, int]]:
        """Those bytes by pool."""
        return saved_turn_table.all_totals(self._db)

    def list_rollouts(self, filter: RolloutFilter) -> list[RolloutRecord]:
        """Return records in order of arrival, or as the search sorts them."""
        if filter.search is not None:
            return rollout_search.find(self._db, filter, filter.search)
        where, values = _where(namespace=filter.namespace, pool=filter.pool, group=filter.group)
        if filter.status:
            where += f" AND status IN ({', '.join('?' * len(filter.status))})"
            values += [s.value for s in filter.status]
        live = bool(filter.status) and not any(s.terminal for s in filter.status)
        if live:
            where += " AND cursor IS NULL"
        if filter.suspicious:
            where += f" AND {SUSPICIOUS}"
        if filter.metadata:
            return self._list_by_metadata(filter, where, values)
        query = f"{row_codec.select(_list_index(filter, live))} WHERE {where} AND seq > ? ORDER BY seq LIMIT ?"
        return [row_codec.from_row(r) for r in self._db.execute(query, [*values, filter.after_seq, filter.limit])]

    def _list_by_metadata(self, filter: RolloutFilter, where: str, values: list[Any]) -> list[RolloutRecord]:
        """Read the index of the first item, and look each of its rollouts up."""
        first, *others = filter.metadata
        where += "".join([_HAS_ITEM] * len(others))
        found = f"{row_codec.select_by_item()} WHERE space = ? AND item = ? AND rollout > ?"
        more = [value for item in others for value in (filter.namespace, item)]
        given = [filter.namespace, first, filter.after_seq, *values, *more, filter.limit]
        rows = self._db.execute(f"{found} AND {where} ORDER BY rollout LIMIT ?", given)
        return [row_codec.from_row(r) for r in rows]

    def summarize(self, filter: RolloutFilter, by: str, limit: int) -> list[RolloutSums]:
        """Return sums over the ended rollouts that match, by a field (`rollout_search.summarize`)."""
        return rollout_search.summarize(self._db, filter, filter.search or RolloutSearch(), by, limit)

    def work(self, filter: RolloutFilter) -> tuple[int, list[RolloutWork]]:
        """Return the number of ended rollouts that match, and the work of the newest (`rollout_search.work`)."""
        return rollout_search.work(self._db, filter, filter.search or RolloutSearch())

    def count(self, filter: RolloutFilter) -> int:
        """Return the number of rollouts that match."""
        return rollout_search.count(self._db, filter, filter.search or RolloutSearch())

    def ends_by_node(self, namespace: str, since: float) -> list[NodeEnd]:
        return rollout_search.ends_by_node(self._db, namespace, since)

    def losing_histories(self, namespace: str, since: float, limit: int) -> list[tuple[str, str]]:
        return rollout_search.losing_histories(self._db, namespace, since, limit)

    def finished(
        self, after: int, limit: int, namespace: str | None = None, group: str | None = None, upto: int | None = None
    ) -> list[RolloutRecord]:
        """Return terminal records after this cursor, and up to the cursor `upto`, in order of the cursor."""
        where, values = _where(namespace=namespace, group=group)
        index = "rollouts_finished" if namespace is None or group is None else "rollouts_finished_group"
        where += " AND cursor IS NOT NULL AND cursor > ?" + (" AND cursor <= ?" if upto is not None else "")
        values += [after] if upto is None else [after, upto]
        query = f"{row_codec.select(index)} WHERE {where} ORDER BY cursor LIMIT ?"
        return [row_codec.from_row(r) for r in self._db.execute(query, [*values, limit])]

    def newest_seq(self) -> int:
        """Return the seq of the newest rollout; 0 if there is no rollout."""
        return self._db.execute("SELECT max(seq) FROM rollouts").fetchone()[0] or 0

    def newest_cursor(self) -> int:
        """Return the greatest cursor; 0 if no rollout has ended."""
        last = self._db.execute(
            "SELECT max(cursor) FROM rollouts INDEXED BY rollouts_finished WHERE cursor IS NOT NULL"
        )
        return last.fetchone()[0] or 0

    def counts(self, namespace: str, pool: str | None = None, group: str | None = None) -> Counts:
        """Number of records by stage and status. A terminal record counts for the stage in which the rollout ended."""
        where, values = _where(namespace=namespace, pool=pool, group=group)
        count = "SELECT stage, status, count(*) FROM rollouts INDEXED BY"
        if group is not None:
            return self._counts(f"{count} rollouts_by_group WHERE {where} GROUP BY stage, status", values)
        live = f"{count} rollouts_live WHERE {where} AND cursor IS NULL GROUP BY stage, status"
        ended = f"SELECT stage, status, sum(records) FROM tallies WHERE {where} GROUP BY stage, status"
        return self._counts(f"{live} UNION ALL {ended}", values * 2)

    def _counts(self, query: str, values: list[Any]) -> Counts:
        return {(Stage(stage), Status(status)): n for stage, status, n in self._db.execute(query, values)}

    def reward_mean(self, namespace: str, pool: str | None = None, group: str | None = None) -> float | None:
        """Mean of the rewards; None if no record has a reward, or if the mean is not finite."""
        where, values = _where(namespace=namespace, pool=pool, group=group)
        query = f"SELECT avg(reward) FROM rollouts INDEXED BY rollouts_by_group WHERE {where}"
        if group is None:
            query = f"SELECT sum(rewards) / nullif(sum(rewarded), 0) FROM tallies WHERE {where}"
        mean: float | None = self._db.execute(query, values).fetchone()[0]
        return mean if mean is not None and math.isfinite(mean) else None  # the sum of rewards near 1e308 is infinite

    def usage_since(self, hour: int, namespace: str | None) -> list[UsageHour]:
        """Return the sums of ended rollouts since this hour (Unix seconds / 3600). None: of all namespaces."""
        return usage_hours.since(self._db, hour, namespace)

    # queues

    def count_queued(self, pool: PoolKey) -> int:
        """Number of queued rollouts of a pool, without the rollouts of batches. Reads the whole queue."""
        query = (
            "SELECT count(*) FROM rollouts INDEXED BY rollouts_queued WHERE status = 'Queued' AND holder IS NULL "
            "AND namespace = ? AND pool = ? AND NOT EXISTS (SELECT 1 FROM batch_groups "
            'WHERE batch_groups.namespace = rollouts.namespace AND batch_groups.id = rollouts."group")'
        )
        return int(self._db.execute(query, pool).fetchone()[0])

    def count_checks(self, pool: PoolKey) -> tuple[int, int]:
        """Numbers of a pool's checks that are queued, and that are leased, without those at EVAL."""
        query = (
            "SELECT count(*), count(holder) FROM rollouts INDEXED BY rollouts_checks "
            "WHERE mode = 'check' AND cursor IS NULL AND namespace = ? AND pool = ? AND stage != 'EVAL'"
        )
        live, leased = self._db.execute(query, pool).fetchone()
        return live - leased, leased

    def queue_places(
        self, namespace: str, pool: str, now: float, limit: int, default_image: str = ""
    ) -> dict[Stage, dict[int, int]]:
        """Places in a pool's queue: stage -> seq of a record -> number of records of this stage before this record.

        Each stage has at most `limit` places. Records in back-off at `now`, and records whose image is missing at `now`, do
        not count. `default_image`: image of the records that name none.
        """
        triable, image_values = missing_image_rows.triable_condition(PoolKey(namespace, pool), default_image, now)
        found = {}
        for stage, also, values in ((Stage.INIT, triable, image_values), (Stage.EVAL, "", [])):
            query = (
                "SELECT seq FROM rollouts INDEXED BY rollouts_queued WHERE status = 'Queued' AND holder IS NULL "
                f"AND namespace = ? AND pool = ? AND stage = ? AND not_before <= ? {also} "
                "ORDER BY priority DESC, queue_rank, seq LIMIT ?"
            )
            rows = self._db.execute(query, (namespace, pool, stage.value, now, *values, limit))
            found[stage] = {seq: before for before, (seq,) in enumerate(rows)}
        return found

    # images

    def missing_images(self, pool: PoolKey | None = None) -> list[MissingImage]:
        """Missing images of one pool or of all, in order of their names."""
        where, values = ("WHERE namespace = ? AND pool = ?", tuple(pool)) if pool is not None else ("", ())
        return [missing_image_rows.from_row(r) for r in self._db.execute(missing_image_rows.select(where), values)]

    def count_without_image(self, pool: PoolKey, default_image: str, now: float) -> int:
        """Number of rollouts that wait for INIT and cannot be granted now because of their images. If an image may be
        tried at `now`, one of its rollouts can be granted."""
        due = {one.image for one in self.missing_images(pool) if one.until <= now}
        held = {one.image for one in self.missing_images(pool)} - due
        found, waiting = set[str](), 0
        for needed, count in self._queued_with_missing(pool, default_image, Stage.INIT):
            tries = set() if needed & held else needed & due - found
            found |= tries
            waiting += count - bool(tries)
        return waiting

    def needs_of_missing_images(self, pool: PoolKey, default_image: str) -> list[tuple[MissingImage, int]]:
        """Missing images of a pool, each with the number of queued rollouts that need it."""
        needs, missing = Counter[str](), self.missing_images(pool)
        for stage in (Stage.INIT, Stage.EVAL) if missing else ():  # this reads the whole queue
            for needed, count in self._queued_with_missing(pool, default_image, stage):
                needs.update(dict.fromkeys(needed, count))
        return [(one, needs[one.image]) for one in missing]

    def _queued_with_missing(self, pool: PoolKey, default_image: str, stage: Stage) -> Iterator[tuple[set[str], int]]:
        """Yield the images that queued rollouts need, and the number of these rollouts; one of their images is missing."""
        missing, values = missing_image_rows.missing_condition(pool, default_image)
        query = (
            "SELECT image, eval_image, count(*) FROM rollouts INDEXED BY rollouts_queued WHERE status = 'Queued' "
            f"AND holder IS NULL AND namespace = ? AND pool = ? AND stage = ? {missing} GROUP BY image, eval_image"
        )
        for image, eval_image, count in self._db.execute(query, (*pool, stage.value, *values)):
            run = image or default_image
            yield ({eval_image or run} if stage is Stage.EVAL else {run, eval_image}), count

    def queued_images(self, pool: PoolKey, default_image: str, now: float, limit: int) -> dict[str, int]:
        """Images of the first `limit` rollouts that can be granted and wait for INIT, with the number of these rollouts.
        The images are in the order of the queue. Missing images are left out."""
        triable, image_values = missing_image_rows.triable_condition(pool, default_image, now)
        query = (
            "SELECT image, eval_image FROM rollouts INDEXED BY rollouts_queued WHERE status = 'Queued' AND holder IS NULL "
            f"AND namespace = ? AND pool = ? AND stage = 'INIT' AND not_before <= ? {triable} "
            "ORDER BY priority DESC, queue_rank, seq LIMIT ?"
        )
        rows = self._db.execute(query, (*pool, now, *image_values, limit))
        needed = Counter(
            one for image, eval_image in rows for one in dict.fromkeys((image or default_image, eval_image))
        )
        del needed[""]
        return dict(needed)

    def images_needed(self) -> set[str]:
        """Return the images that unfinished rollouts and the tasks of running batches name, in normal form. Reads all
        these tasks."""
        query = "SELECT DISTINCT image, eval_image FROM rollouts INDEXED BY rollouts_live WHERE cursor IS NULL"
        of_rollouts = {image for row in self._db.execute(query) for image in row}
        query = (
            "SELECT DISTINCT json_extract(body, '$.image'), json_extract(body, '$.evaluator.image') FROM dataset_tasks "
            "WHERE instr(body, '\"image\"') AND digest IN "
            "(SELECT series.digest FROM batches INDEXED BY batches_running JOIN series "
            "ON series.namespace = batches.namespace AND series.name = batches.series WHERE batches.status = 'Running')"
        )
        of_batches = {normal_form(one) for row in self._db.execute(query) for one in row if isinstance(one, str)}
        return (of_rollouts | of_batches) - {""}


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


def _where(**equal: str | None) -> tuple[str, list[Any]]:
    """Return an SQL condition on the given columns, and its values."""
    given = {name: value for name, value in equal.items() if value is not None}
    return " AND ".join(["TRUE", *(f'"{name}" = ?' for name in given)]), list(given.values())
