"""No question about rollouts reads, or sorts, the whole table: told by SQLite's own plans for what is really asked."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollyard.kinds.batch import BatchKey
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage, Status
from rollyard.store import batch_pruning, ended_allocations, pruning, tables
from rollyard.store.base import RolloutFilter, RolloutSearch, SortField
from rollyard.store.blobs import PackWriter
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.writer import WriteUnit
from tests.support.make import rollout

Ask = Callable[[sqlite3.Connection, Transaction], object]
RUNNING, FAILED = (Status.RUNNING,), (Status.FAILED,)
POOL = PoolKey("n", "p")
FOUND = RolloutSearch("math", "eval", "Lost", "t", "b", "r", 1.0, 2.0, 0.0, 1.0)
QUESTIONS: dict[str, Ask] = {
    "get": lambda db, tx: tx.get("n", "r"),
    "queued": lambda db, tx: tx.queued([POOL, PoolKey("n", "q")], list(Stage), 0.0, 5),
    "queued behind": lambda db, tx: tx.queued([POOL], list(Stage), 0.0, 5, kinds={"math"}, after=rollout("r")),
    "queued with least versions": lambda db, tx: tx.queued([POOL], list(Stage), 0.0, 5, minima={"v1", "v2"}),
    "queued without missing images": lambda db, tx: tx.queued([POOL], list(Stage), 0.0, 5, default_image="a"),
    "queued checks": lambda db, tx: tx.queued([POOL], [Stage.INIT], 0.0, 5, mode="check"),
    "number of checks": lambda db, tx: tx.count_checks(POOL),
    "queued of an image": lambda db, tx: tx.queued_of_image(POOL, "a", 0.0, 5),
    "missing images": lambda db, tx: tx.missing_images(POOL),
    "queued that wait for images": lambda db, tx: tx.count_without_image(POOL, "a", 0.0),
    "queued that need missing images": lambda db, tx: tx.needs_of_missing_images(POOL, "a"),
    "images in a queue": lambda db, tx: tx.queued_images(POOL, "a", 0.0, 5),
    "places in a queue": lambda db, tx: tx.queue_places("n", "p", 0.0, 5, "a"),
    "what asks something of the weights": lambda db, tx: tx.version_bound(POOL),
    "versions of a group": lambda db, tx: tx.group_versions("n", "g"),
    "held": lambda db, tx: tx.held("h"),
    "next page": lambda db, tx: tx.list_rollouts(RolloutFilter()),
    "next page of a namespace": lambda db, tx: tx.list_rollouts(RolloutFilter("n")),
    "next page of a pool": lambda db, tx: tx.list_rollouts(RolloutFilter("n", "p", status=FAILED)),
    "next page of a group": lambda db, tx: tx.list_rollouts(RolloutFilter("n", "p", "g", status=RUNNING)),
    "next page of a pool with suspicious rewards": lambda db, tx: tx.list_rollouts(
        RolloutFilter("n", "p", suspicious=True)
    ),
    "next page by metadata": lambda db, tx: tx.list_rollouts(RolloutFilter("n", metadata=("level=3",))),
    "next page of a pool by metadata": lambda db, tx: tx.list_rollouts(
        RolloutFilter("n", "p", "g", ("level=3", "source=x"), FAILED)
    ),
    "search": lambda db, tx: tx.list_rollouts(RolloutFilter("n", "p", search=FOUND)),
    "search with metadata": lambda db, tx: tx.list_rollouts(
        RolloutFilter("n", "p", "g", ("level=3",), suspicious=True, status=FAILED, search=FOUND)
    ),
    "sorted search": lambda db, tx: tx.list_rollouts(
        RolloutFilter("n", search=RolloutSearch(sort=SortField.TOKENS, descending=True))
    ),
    "summary": lambda db, tx: tx.summarize(RolloutFilter("n", search=FOUND), "reason", 5),
    "summary by metadata": lambda db, tx: tx.summarize(RolloutFilter("n"), "metadata.level", 5),
    "search of losses": lambda db, tx: tx.list_rollouts(RolloutFilter("n", search=RolloutSearch(lost=True))),
    "summary of losses": lambda db, tx: tx.count(RolloutFilter("n", search=RolloutSearch(lost=True))),
    "losses": lambda db, tx: tx.losing_histories("n", 1.0, 5),
    "ends by node": lambda db, tx: tx.ends_by_node("n", 1.0),
    "what runs": lambda db, tx: tx.list_rollouts(RolloutFilter("n", status=RUNNING)),
    "what runs in a pool": lambda db, tx: tx.list_rollouts(RolloutFilter("n", "p", status=RUNNING)),
    "stream": lambda db, tx: tx.finished(0, 5, None, None),
    "stream of a namespace": lambda db, tx: tx.finished(0, 5, "n", None),
    "stream of a group": lambda db, tx: tx.finished(0, 5, "n", "g"),
    "what has outlived its time": lambda db, tx: pruning.ended_before(db, POOL, 0.0, 5),
    "artifacts that have outlived theirs": lambda db, tx: pruning.artifacts_before(db, POOL, 0.0, 5),
    "what was acknowledged": lambda db, tx: batch_pruning.acknowledged_before(db, 1.0, 5),
    "pools with ended batches": lambda db, tx: batch_pruning.pools_with_batches(db),
    "batches that have outlived their time": lambda db, tx: batch_pruning.ended_before(db, POOL, 1.0, 5),
    "groups of such a batch": lambda db, tx: batch_pruning.delivered_groups(db, BatchKey("n", "b"), 5),
    "counts": lambda db, tx: tx.counts("n", None, None),
    "counts of a pool": lambda db, tx: tx.counts("n", "p", None),
    "counts of a group": lambda db, tx: tx.counts("n", "p", "g"),
    "queued without batches": lambda db, tx: tx.count_queued(POOL),
    "mean reward": lambda db, tx: tx.reward_mean("n", "p", None),
    "mean reward of a group": lambda db, tx: tx.reward_mean("n", None, "g"),
    "usage": lambda db, tx: tx.usage_since(1, "n"),
    "ended allocations": lambda db, tx: ended_allocations.since(db, 0.0, "n", 5),
    "a batch": lambda db, tx: tx.batches.batch(BatchKey("n", "b")),
    "running batches": lambda db, tx: tx.batches.running(),
    "a group": lambda db, tx: tx.batches.group("n", "g"),
    "live groups": lambda db, tx: tx.batches.live_groups(BatchKey("n", "b")),
    "carried groups": lambda db, tx: tx.batches.carried("n", "s"),
    "rollouts of a group that run": lambda db, tx: tx.batches.unended("n", "g"),
    "delivered groups": lambda db, tx: tx.batches.delivered(BatchKey("n", "b"), 0, 5),
    "a task": lambda db, tx: tx.batches.task("d", 0),
    "stored tasks": lambda db, tx: tx.batches.stored_tasks("d"),
    "history": lambda db, tx: tx.batches.history("n", "d", 0),
    "a series": lambda db, tx: tx.batches.series("n", "s"),
    "a dataset": lambda db, tx: tx.batches.dataset("n", "d"),
}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(tmp_path / "rollyard.db", isolation_level=None)
    tables.prepare(db)
    yield db
    db.close()


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_reads_the_whole_table(db: sqlite3.Connection, tmp_path: Path, question: str) -> None:
    asked: list[str] = []
    db.set_trace_callback(asked.append)
    QUESTIONS[question](db, Transaction(WriteUnit(db, PackWriter(tmp_path, 1))))
    db.set_trace_callback(None)
    assert asked
    plan = [row[3] for statement in asked for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
    whole = [step for step in plan if step.startswith("SCAN") and not re.search(r"COVERING INDEX|\(subquery", step)]
    sorts = [step for step in plan if step == "USE TEMP B-TREE FOR ORDER BY"]
    assert not whole, plan
    # What one node agent holds is few, and sorted. A search sorts the page that it has found, or the columns of its index.
    assert not sorts or question == "held" or "search" in question or "summary" in question, plan
