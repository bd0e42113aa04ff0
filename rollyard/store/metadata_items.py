"""Items of the metadata of rollouts' tasks, by which rollouts are listed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from rollyard.kinds.task_metadata import items
from rollyard.store import row_codec
from rollyard.store.base import RolloutRecord

_DELETE = "DELETE FROM metadata_items WHERE space = ? AND item = ? AND rollout = ?"


def insert(db: sqlite3.Connection, record: RolloutRecord, seq: int) -> None:
    rows = [(record.namespace, item, seq) for item in items(record.metadata)]
    db.executemany("INSERT INTO metadata_items VALUES (?, ?, ?)", rows)


def delete(db: sqlite3.Connection, rollouts: Sequence[int]) -> None:
    """Delete the items of these rollouts (`seq`), which are still stored."""
    marks = ", ".join("?" * len(rollouts))
    query = f"SELECT namespace, metadata, seq FROM rollouts WHERE seq IN ({marks}) AND metadata != '{{}}'"
    found = db.execute(query, rollouts).fetchall()
    db.executemany(
        _DELETE, [(space, item, seq) for space, text, seq in found for item in items(row_codec.mapping_of(text))]
    )
