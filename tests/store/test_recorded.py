"""A recorded data folder opens, and everything in it is read in full."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from rollyard.kinds.registry import KINDS
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.server.rollouts.results import trajectory
from rollyard.store.base import BlobRef, RolloutRecord
from rollyard.store.store import Store
from rollyard.trajectory import Outcome, Trajectory
from rollyard.trajectory.columns import decode
from tests.store.record import (
    ENDED,
    EVALUATION,
    FOLDER,
    MISSING,
    SCHEMA,
    as_json,
    ended_as_json,
    evaluation_as_json,
    missing_as_json,
    objects,
    put_batches,
    put_sessions,
    read_batches,
    read_metrics,
    read_sessions,
    record_of,
    snapshots_as_json,
    turns_as_json,
)
from tests.support.recorded import lost_fields

RULE = "stored data only grows: keep every field under its name, and give a new one a default and a schema number"
BLOB = BlobRef("p", 0, 1, "")
RECORDED = [FOLDER / f"schema-{SCHEMA}"]


def restore(recorded: Path, folder: Path) -> Path:
    """The folder as the server left it."""
    shutil.copytree(recorded / "blobs", folder / "blobs")
    with closing(sqlite3.connect(folder / "rollyard.db")) as db:
        db.executescript((recorded / "rollyard.sql").read_text())
    return folder


def contents(recorded: Path) -> Any:
    return json.loads((recorded / "contents.json").read_text())


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.name)
async def test_a_recorded_folder_opens_and_loses_nothing(recorded: Path, tmp_path: Path) -> None:
    told = contents(recorded)
    store = await Store.open(restore(recorded, tmp_path))
    found = [obj.dump() for kind in KINDS for obj in (await store.objects.list_objects(kind))[0]]
    found.sort(key=lambda obj: int(obj["metadata"]["resourceVersion"]))
    assert lost_fields(told["objects"], found) == [], RULE
    for one in told["rollouts"]:
        record = await store.rollouts.get(one["namespace"], one["id"])
        assert record is not None
        assert lost_fields(one, as_json(record)) == [], RULE
        request = RolloutRequest.model_validate_json(record.request)
        assert lost_fields(json.loads(one["request"]), json.loads(request.model_dump_json())) == [], RULE
        if record.result is not None:
            blob = zstandard.decompress(await store.packs.read(record.result))
            assert lost_fields(told["outcome"], result_of(record, blob)) == [], RULE
    if "batches" in told:
        batches = await store.rollouts.transact(lambda tx: read_batches(tx.batches))
        assert lost_fields(told["batches"], batches) == [], RULE
    if "snapshots" in told:
        first = await store.rollouts.get(told["rollouts"][0]["namespace"], told["rollouts"][0]["id"])
        assert first is not None
        assert lost_fields(told["snapshots"], snapshots_as_json(await store.rollouts.snapshots(first))) == [], RULE
    if "saved_turns" in told:
        first = await store.rollouts.get(told["rollouts"][0]["namespace"], told["rollouts"][0]["id"])
        assert first is not None
        assert lost_fields(told["saved_turns"], turns_as_json(await store.rollouts.saved_turns(first))) == [], RULE
    if "missing_images" in told:
        assert lost_fields(told["missing_images"], await store.rollouts.transact(missing_as_json)) == [], RULE
    if "ended_allocations" in told:
        assert lost_fields(told["ended_allocations"], await ended_as_json(store)) == [], RULE
    if "evaluation" in told:
        assert lost_fields(told["evaluation"], await evaluation_as_json(store)) == [], RULE
    if "sessions" in told:
        assert lost_fields(told["sessions"], await read_sessions(store)) == [], RULE
    assert lost_fields(told["metrics"], await read_metrics(store)) == [], RULE
    await store.close()


def result_of(record: RolloutRecord, blob: bytes) -> Any:
    """The stored outcome as its readers see it, who all see the same."""
    (kept,) = decode(blob).documents()
    columns = trajectory(record, blob)
    (answered,) = columns.documents()
    assert columns.trajectories() == [Trajectory.model_validate(answered)]
    assert (answered["segments"], answered["turns"]) == (kept["segments"], kept["turns"])
    return json.loads(Outcome.model_validate(kept).model_dump_json())


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.name)
async def test_work_goes_on_in_a_recorded_folder(recorded: Path, tmp_path: Path) -> None:
    store = await Store.open(restore(recorded, tmp_path))
    (running,) = await store.rollouts.transact(lambda tx: tx.held())
    await store.rollouts.transact(
        lambda tx: tx.put(replace(running, holder=None, status=Status.CANCELLED, finished_at=1.0))
    )
    ended = await store.rollouts.get("default", "Running")
    assert ended is not None
    assert ended.cursor == len(Status) - 1
    for kind in KINDS:
        for obj in (await store.objects.list_objects(kind))[0]:
            await store.objects.delete(obj.key)
    await store.close()


async def test_the_newest_schema_is_recorded_with_every_field(tmp_path: Path) -> None:
    newest = FOLDER / f"schema-{SCHEMA}"
    assert sorted(FOLDER.iterdir()) == sorted(RECORDED), "python -m tests.store.record"
    told = contents(newest)
    later = f"{RULE}: raise tables.SCHEMA, run python -m tests.store.record"
    for obj in objects():
        (there,) = (one for one in told["objects"] if one["kind"] == obj.kind)  # type: ignore[attr-defined]
        assert lost_fields(_names(obj.dump()), _names(there)) == [], later
    for status in Status:
        (there,) = (one for one in told["rollouts"] if one["id"] == status)
        today = as_json(record_of(status, BLOB))
        assert lost_fields(_names(today), _names(there)) == [], later
        assert lost_fields(_names(json.loads(today["request"])), _names(json.loads(there["request"]))) == [], later
    batches, sessions = await _filled_today(tmp_path)
    assert lost_fields(_names(batches), _names(told["batches"])) == [], later
    assert lost_fields(_names(sessions), _names(told["sessions"])) == [], later
    evaluation = json.loads(EVALUATION.model_dump_json())
    assert lost_fields(_names(evaluation), _names(told["evaluation"]["request"])) == [], later
    assert _names(ENDED.model_dump(mode="json")) == _names(told["ended_allocations"][0]), later
    assert _names(json.loads(json.dumps(asdict(MISSING)))) == _names(told["missing_images"][0]), later


def test_the_recording_is_small_and_carries_nothing_of_a_machine() -> None:
    for recorded in RECORDED:
        files = [path for path in recorded.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) < 200_000
        assert not any(b"/root/" in path.read_bytes() or b"/home/" in path.read_bytes() for path in files)


async def _filled_today(folder: Path) -> tuple[Any, Any]:
    store = await Store.open(folder)
    await store.rollouts.transact(lambda tx: put_batches(tx.batches))
    found = await store.rollouts.transact(lambda tx: read_batches(tx.batches))
    await put_sessions(store)
    sessions = await read_sessions(store)
    await store.close()
    return found, sessions


def _names(value: Any) -> Any:
    """The shape alone: names, without values."""
    if isinstance(value, dict):
        return {name: _names(inner) for name, inner in value.items()}
    return [_names(one) for one in value] if isinstance(value, list) else None
