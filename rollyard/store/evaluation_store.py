"""Evaluations, and the results of their rollouts.

A result is inserted in the transaction in which its rollout ends. So no result is missing or counted twice after a crash, and
the results outlive the rollouts.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rollyard.core.errors import Conflict
from rollyard.kinds.base import evolve
from rollyard.kinds.evaluation import EVALUATED, EvaluationKey, EvaluationRequest, RunPlace
from rollyard.kinds.rollout import Status
from rollyard.store import row_codec
from rollyard.store.base import RolloutRecord
from rollyard.store.read_connections import Readers
from rollyard.store.writer import Writer, WriteUnit

_RESULT = "task, rollout, kind, metadata, status, reason, reward, weights_version, finished_at, repeated"
_INSERT = (
    "INSERT OR REPLACE INTO evaluation_results (namespace, evaluation, task, rollout, kind, metadata, status, reason, reward, "
    'weights_version, tokens, turns, seconds, finished_at) SELECT namespace, "group", task, id, task_kind, metadata, status, '
    "reason, reward, nullif(sampled_by, ''), tokens, turns, seconds, finished_at FROM rollouts"
)
_OF_EVALUATION = "mode = 'eval' AND cursor IS NOT NULL AND substr(id, 1, length(\"group\") + 1) = \"group\" || '.'"
"""Condition for ended rollouts whose ids begin with the name of their evaluation, which is their group."""


class StoredEvaluation(NamedTuple):
    namespace: str
    request: EvaluationRequest
    created_at: float


class EvaluationResult(NamedTuple):
    """End of one rollout of an evaluation."""

    task: str
    """Digest of the task."""
    rollout: str
    kind: str
    metadata: str
    """JSON."""
    status: Status
    reason: str | None
    reward: float | None
    weights_version: str | None
    """Version that sampled the rollout, or several joined with commas."""
    finished_at: float
    repeated: bool = False
    """Whether another rollout takes the place of this one."""


class EvaluationTally(NamedTuple):
    """Counts of an evaluation's results."""

    ended: int = 0
    scored: int = 0
    """Results that count: with a reward, and of the weights version that the evaluation names, if it names one."""
    faults: Mapping[str, int] = {}
    """Reason, else status, of the results without a reward -> their number."""
    other_version: int = 0
    repeated: int = 0
    """Results in whose places other rollouts are. They are in no other count."""
    weights_versions: Mapping[str, int] = {}
    mean_reward: float | None = None
    """Mean over the tasks' means of the results that count."""
    last_finished_at: float | None = None

    def is_complete(self, request: EvaluationRequest) -> bool:
        return self.ended >= request.tasks * request.k


class EvaluationStore:
    """All methods raise Unavailable."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def create(self, namespace: str, request: EvaluationRequest, now: float) -> bool:
        """Store an evaluation; return whether it is new. Ended rollouts of its group that are stored already count for it.

        Raises Conflict if an evaluation of this name has another body.
        """
        return await self._writer.call(partial(_create, namespace, request, now))

    async def get(self, key: EvaluationKey) -> StoredEvaluation | None:
        return await self._readers.call(partial(get, key=key))

    async def newest(self, namespace: str, limit: int) -> list[tuple[StoredEvaluation, EvaluationTally]]:
        """Return the newest evaluations, newest first."""
        return await self._readers.call(partial(newest, namespace=namespace, limit=limit), costly=True)

    async def tally(self, stored: StoredEvaluation) -> EvaluationTally:
        return await self._readers.call(partial(tally, stored=stored), costly=True)

    async def results(self, key: EvaluationKey) -> list[EvaluationResult]:
        """Return all results, in order of the tasks and the rollouts' ids."""
        return await self._readers.call(partial(results, key=key), costly=True)

    async def repeat_uncounted(self, key: EvaluationKey) -> int | None:
        """If all rollouts have ended, make room for others in the places of those that do not count; return their number.

        None if there is no such evaluation. While some have not ended, nothing is done, so a caller that was interrupted
        may call this again.
        """
        return await self._writer.call(partial(_repeat_uncounted, key))

    async def delete(self, key: EvaluationKey) -> bool:
        """Delete an evaluation with its results; return whether it was there."""
        return await self._writer.call(partial(_delete, key))


def add_result(db: sqlite3.Connection, record: RolloutRecord) -> None:
    """Store the result of a rollout that has just ended, if it belongs to an evaluation."""
    if record.mode != EVALUATED or record.group is None:
        return
    if db.execute(
        "SELECT 1 FROM evaluations WHERE namespace = ? AND name = ?", (record.namespace, record.group)
    ).fetchone():
        db.execute(f"{_INSERT} WHERE seq = ? AND {_OF_EVALUATION}", (record.seq,))


def get(db: sqlite3.Connection, key: EvaluationKey) -> StoredEvaluation | None:
    row = db.execute("SELECT created_at, body FROM evaluations WHERE namespace = ? AND name = ?", key).fetchone()
    return StoredEvaluation(key.namespace, _request(row[1]), row[0]) if row else None


def newest(db: sqlite3.Connection, namespace: str, limit: int) -> list[tuple[StoredEvaluation, EvaluationTally]]:
    rows = db.execute(
        "SELECT created_at, body FROM evaluations NOT INDEXED WHERE namespace = ? ORDER BY seq DESC LIMIT ?",
        (namespace, limit),
    )
    found = [StoredEvaluation(namespace, _request(body), created_at) for created_at, body in rows]
    return [(one, tally(db, one)) for one in found]


def tally(db: sqlite3.Connection, stored: StoredEvaluation) -> EvaluationTally:
    key, pinned = (stored.namespace, stored.request.name), stored.request.weights_version
    counts = db.execute(
        "SELECT repeated, reward IS NULL, coalesce(reason, status), weights_version, count(*), max(finished_at) "
        "FROM evaluation_results WHERE namespace = ? AND evaluation = ? GROUP BY 1, 2, 3, 4",
        key,
    ).fetchall()
    faults, versions, counted, repeated = Counter[str](), Counter[str](), 0, 0
    for is_repeated, is_fault, why, version, count, _ in counts:
        if is_repeated:
            repeated += count
        elif is_fault:
            faults[why] += count
        else:
            versions[str(version)] += count
            counted += count if pinned in (None, version) else 0
    (mean,) = db.execute(
        "SELECT avg(mean) FROM (SELECT avg(reward) AS mean FROM evaluation_results WHERE namespace = ? AND evaluation = ? "
        "AND NOT repeated AND reward IS NOT NULL AND (? IS NULL OR weights_version = ?) GROUP BY task)",
        (*key, pinned, pinned),
    ).fetchone()
    return EvaluationTally(
        ended=faults.total() + versions.total(),
        scored=counted,
        faults=dict(faults.most_common()),
        other_version=versions.total() - counted,
        repeated=repeated,
        weights_versions=dict(versions.most_common()),
        mean_reward=mean,
        last_finished_at=max((at for *_, at in counts), default=None),
    )


def results(db: sqlite3.Connection, key: EvaluationKey) -> list[EvaluationResult]:
    rows: Sequence[tuple[str, ...]] = db.execute(
        f"SELECT {_RESULT} FROM evaluation_results WHERE namespace = ? AND evaluation = ? ORDER BY task, rollout", key
    ).fetchall()
    return [EvaluationResult(*row)._replace(status=Status(row[4]), repeated=bool(row[9])) for row in rows]  # type: ignore[arg-type]


def _create(namespace: str, request: EvaluationRequest, now: float, unit: WriteUnit) -> bool:
    if (there := get(unit.db, EvaluationKey(namespace, request.name))) is not None:
        if evolve(there.request, dataset=request.dataset) != request:  # the same tasks may come from another file
            raise Conflict(
                f"evaluation {request.name!r} exists with other tasks or settings; choose another name, or delete it first: "
                f"rollyard eval delete {request.name}"
            )
        return False
    body = request.model_dump_json(exclude_defaults=True)
    unit.db.execute(
        "INSERT INTO evaluations (namespace, name, created_at, body) VALUES (?, ?, ?, ?)",
        (namespace, request.name, now, body),
    )
    unit.db.execute(
        f'{_INSERT} INDEXED BY rollouts_finished_group WHERE namespace = ? AND "group" = ? AND {_OF_EVALUATION}',
        (namespace, request.name),
    )
    _mark_repeated(unit.db, EvaluationKey(namespace, request.name))
    return True


def _mark_repeated(db: sqlite3.Connection, key: EvaluationKey) -> None:
    """Mark the results of rollouts that a later one of the same run has replaced."""
    newest: dict[str, tuple[int, EvaluationResult]] = {}
    replaced = list[EvaluationResult]()
    for result in results(db, key):
        run, repeat = RunPlace.of(result.rollout)
        there = newest.get(run)
        if there is not None:
            replaced.append(there[1] if there[0] < repeat else result)
        if there is None or there[0] < repeat:
            newest[run] = (repeat, result)
    db.executemany(
        "UPDATE evaluation_results SET repeated = 1 WHERE namespace = ? AND evaluation = ? AND task = ? AND rollout = ?",
        [(*key, result.task, result.rollout) for result in replaced],
    )


def _repeat_uncounted(key: EvaluationKey, unit: WriteUnit) -> int | None:
    stored = get(unit.db, key)
    if stored is None or not tally(unit.db, stored).is_complete(stored.request):
        return None if stored is None else 0
    pinned = stored.request.weights_version
    return unit.db.execute(
        "UPDATE evaluation_results SET repeated = 1 WHERE namespace = ? AND evaluation = ? AND NOT repeated "
        "AND (reward IS NULL OR (? IS NOT NULL AND weights_version IS NOT ?))",
        (*key, pinned, pinned),
    ).rowcount


def _delete(key: EvaluationKey, unit: WriteUnit) -> bool:
    unit.db.execute("DELETE FROM evaluation_results WHERE namespace = ? AND evaluation = ?", key)
    return unit.db.execute("DELETE FROM evaluations WHERE namespace = ? AND name = ?", key).rowcount > 0


def _request(body: str) -> EvaluationRequest:
    return EvaluationRequest.model_validate_json(body, extra="ignore")


def metadata_of(result: EvaluationResult) -> dict[str, object]:
    return row_codec.mapping_of(result.metadata)
