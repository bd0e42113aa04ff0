"""`python -m tests.store.record` records a data folder of the newest schema, if there is none yet.

The folder of a release is never changed: it is what a server of that time left behind. The folder of a schema that no
release has is removed. The database is kept as SQL text.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import zstandard

from rollyard.gateway.session.stored_call import ReadAnswer, StoredCall, StoredChat, StoredPrompt, StoredTurn, checksum
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import KindObject
from rollyard.kinds.batch import BatchKey, BatchRequest, BatchStatus, DatasetRef
from rollyard.kinds.evaluation import EvaluationKey, EvaluationRequest
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import AgentSpec, ForkPoint, RolloutError, RolloutRequest, Stage, Status, WeightsConstraint
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.kinds.session import SessionRequest
from rollyard.kinds.usage import EndedAllocation
from rollyard.store.base import BlobRef, MissingImage, RolloutRecord, StoredSnapshot
from rollyard.store.batch_records import (
    BatchRecord,
    DatasetRecord,
    EndedRollout,
    GroupRecord,
    GroupState,
    LengthSums,
    PutBack,
    RewardSums,
    SeriesRecord,
    StepRecord,
    TaskHistory,
)
from rollyard.store.batch_transaction import BatchTransaction
from rollyard.store.metric_buckets import sample
from rollyard.store.metric_tables import BucketRange, StoredDecision, TrackKey
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.saved_turn_table import ResumeState
from rollyard.store.store import Store
from rollyard.store.tables import SCHEMA
from rollyard.tokens.tool_calls import ToolCall
from rollyard.trajectory.columns import encode
from rollyard.trajectory.stored_session import SessionProgress, StoredCallBytes, StoredSession
from tests.support.filled import filled
from tests.support.make import event, rollout
from tests.support.manual_clock import ManualClock
from tests.wire.samples import ERROR, LEASE, OUTCOME, RESUMPTION

FOLDER = Path(__file__).with_name("recorded")
SPECS: dict[type[KindObject], dict[str, Any]] = {
    InferencePool: {
        "replicas": 2,
        "model": {"path": "/models/policy", "servedName": "policy", "toolParser": "hermes"},
        "engine": {"vllm": {"extraArgs": ["--seed=1"]}},
        "allocation": {"partition": "gpu", "gpusPerNode": 1, "memory": "8G", "timeLimit": "1:00:00"},
    },
    RolloutPool: {
        "replicas": 1,
        "inference": {"policy": "policy"},
        "sandbox": {"cpus": 1.0},
        "allocation": {"cpusPerTask": 4},
    },
    Allocation: {
        "pool": {"kind": "InferencePool", "name": "policy", "uid": "u"},
        "index": 0,
        "template_hash": "h",
        "template": {"cpusPerTask": 2},
        "drain": True,
        "drain_timeout_seconds": 60,
        "successor_of": "policy-1",
        "after_job": "6",
        "model": "/models/policy",
    },
}


def objects() -> list[KindObject]:
    """One of each kind; in every status each field has a value."""
    made: list[KindObject] = [event("swe-1", count=3)]
    for kind, spec in SPECS.items():
        status = filled(kind.model_fields["status"].annotation)  # type: ignore[arg-type]
        meta = {
            "name": kind.SINGULAR,
            "labels": {"a": "b"},
            "annotations": {"c": "d"},
            "finalizers": ["rollyard.dev/x"],
        }
        made.append(kind.model_validate({"metadata": meta, "spec": spec, "status": status}))
    return made


def record_of(status: Status, blob: BlobRef) -> RolloutRecord:
    """A record in which every field has a value that a record of this status may have."""
    ended, running, checks = status.terminal, status is Status.RUNNING, status is Status.CANCELLED
    request = RolloutRequest(
        id=status.value,
        pool="rolloutpool",
        task=LEASE.task,
        group="g",
        agent=CHECKING if checks else FORKED if status is Status.QUEUED else LEASE.agent,
        regrade_of="r.0" if checks else None,
        sampling=LEASE.sampling,
        budgets=LEASE.budgets,
        priority=1,
        mode="check" if checks else "eval",
        min_weights_version=None if checks else "v2",
        group_version="any" if checks else "same",
        max_staleness=None if checks else 2,
    )
    return rollout(
        status.value,
        request=request.model_dump_json(),
        pool="rolloutpool",
        group="g",
        sample_index=1,
        mode=request.mode,
        priority=1,
        status=status,
        stage=Stage.EVAL if ended else Stage.RUN if running else Stage.INIT,
        attempt=2,
        faults=1,
        lost=1,
        losses=1,
        fence=3,
        holder="u/i" if running else None,
        node="n1",
        endpoints={"policy": "policy-0"},
        queued_at=1_700_000_001.0,
        not_before=1_700_000_002.0,
        queued_seconds=3.0,
        artifact=blob if ended else None,
        result=blob if ended else None,
        reward=1.0 if status.scored else None,
        error=RolloutError(**ERROR.model_dump()) if ended and not status.scored else None,
        summary={
            "turns": 1,
            "tokens": 2,
            "prompt_tokens": 5,
            "profile": {"by_tool": [{"tool": "bash", "calls": 2, "failed": 1}]},
        },
        finished_at=1_700_000_009.0 if ended else None,
        min_weights_version="v2",
        weights=WeightsConstraint(same=True, max_staleness=2),
        weights_version="v3",
        sampled_by=("v3", "v4") if ended else (),
        outdated=1,
        image="docker://registry.example/swe:v1",
        eval_image="docker://registry.example/swe-tests:v1",
        metadata={"difficulty": "hard"},
        task="5f1c5f1c5f1c5f1c",
        queue_rank=3.0,
        saved_turns=2 if status is Status.QUEUED else 0,
        history='[1700000001.0,"Leased",2,"INIT",{"node":"n1"}]\n',
    )


FORKED = AgentSpec(snapshots="every", fork_from=ForkPoint(rollout="r", turn=3))
"""Fields that only the built-in loop may have."""
CHECKING = AgentSpec(type="script", script="exit 1")
"""Fields that only a check may have."""
LENGTHS = LengthSums(rollouts=2, tokens=30, turns=4, seconds=1.5)
STEP = StepRecord(
    "default", "d", 2, "Running", 1_700_000_001.0, 1_700_000_009.0,
    RewardSums(1, 2, 1.5, 1.25, 0.25, 20, 4, 1.5, 6, ((0.5, 1), (1.0, 1))),
    RewardSums(1, 1, 0.5, 0.25, 0.0, 10, 2, 0.5, 3, ((0.5, 1),)), 1, 1, 1, 1, 20, 2, 1, 1, 1,
)  # fmt: skip


def put_batches(tables: BatchTransaction) -> None:
    """A dataset, its series and history, a batch of each status, a group of each state; each field has a value."""
    request = BatchRequest(pool="rolloutpool", dataset=DatasetRef(name="d", seed=3), target=2)
    tables.put_dataset(DatasetRecord("default", "d", "digest", 1, ("math",), 1_700_000_000.0))
    tables.add_tasks("digest", 0, ['{"kind":"math"}'])
    tables.put_history("default", "d", 0, TaskHistory(4, 1, 3, 8, 2.5, 100.5))
    tables.put_series(
        SeriesRecord(
            namespace="default", name="d", digest="digest", dataset="d", seed=3, tasks=1, epoch=1, position=1, next_number=9,
            put_back=(PutBack(0, 1, 1, 20),), step=2, settled=4.5, settled_informative=1.5, passed_over=1,
            whole_lengths=LENGTHS, delivered_lengths=LENGTHS,
        )
    )  # fmt: skip
    for status in BatchStatus:
        tables.put_batch(
            BatchRecord(
                namespace="default", id=status.value, digest="b", request=request.model_dump_json(), pool="rolloutpool",
                series="d", created_at=1_700_000_000.0, status=status, ended_at=1_700_000_009.0,
                engine_priority=True, slots=4, step=2, queue_rank=7.0,
                settled=4.5,
                settled_informative=1.5, open=1, informative=1, unfinished=3, delivered=1, acknowledged=1, drawn=5,
                carried_in=1, passed_over=1, all_low=1, all_high=1, other=1, faulty=1, faulty_in_a_row=1,
                compared=3, differing=1, wasted_tokens=20, drained=True,
                staleness=1, whole_lengths=LENGTHS, delivered_lengths=LENGTHS,
            )
        )  # fmt: skip
    tables.put_training_step(STEP)
    for number, state in enumerate(GroupState):
        tables.put_group(
            GroupRecord(
                namespace="default", id=f"d-g{number}", series="d", number=number, pool="rolloutpool", n=2, task_index=0,
                epoch=1, drawn_at=1_700_000_001.0, drawn_step=2, batch="Running", state=state,
                delivery=1 if state is GroupState.DELIVERED else None, staleness=1, tries=1,
                ended=(EndedRollout(1, Status.COMPLETED, 1.0, 10, 2, 0.5, 3), EndedRollout(0, Status.FAILED, None, 0, 0, 0.0)),
            )
        )  # fmt: skip


def read_batches(tables: BatchTransaction) -> Any:
    """Contents of the tables of batches as JSON."""
    found = {
        "datasets": [tables.dataset("default", "d")],
        "history": [tables.history("default", "d", 0)],
        "series": [tables.series("default", "d")],
        "batches": [tables.batch(BatchKey("default", status.value)) for status in BatchStatus],
        "groups": [tables.group("default", f"d-g{number}") for number in range(len(GroupState))],
        "steps": [tables.training_step("default", "d", 2, "Running")],
    }
    assert all(record is not None for records in found.values() for record in records)
    tasks = [tables.task("digest", 0)]
    plain = {name: [asdict(record) for record in records if record is not None] for name, records in found.items()}
    return json.loads(json.dumps({**plain, "tasks": tasks}))


def as_json(found: RolloutRecord) -> Any:
    return json.loads(json.dumps({f.name: _plain(getattr(found, f.name)) for f in fields(found)}))


def _plain(value: Any) -> Any:
    if isinstance(value, BlobRef):
        return [value.pack, value.offset, value.length, value.sha256]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


SESSION = StoredSession(
    "i-Open", "Open", "default", "policy", SessionRequest(pool="policy", id="Open").model_dump_json(), 1_700_000_000.0,
    "policy", "/models/policy", progress=SessionProgress(1, 9, True, "policy-0"),
)  # fmt: skip
ANSWER = ReadAnswer("2", [ToolCall("add", {"a": 1}, "abcdefghi")], ["call_1"], "error", "END")
TURN = StoredTurn(
    [9, 1], [-0.5, -0.25], [("v1", 1), ("v2", 1)], "stop", ANSWER, 0.5, [((9, -0.5),), ((1, -0.25),)], "json_schema"
)
CALLS = [
    StoredCall(
        StoredChat(
            None, [{"role": "user", "content": "1 + 1?"}], [{"type": "function"}], [None], (0, "HistoryChanged", "why"),
            "2", [7], "resp_1", 1,
        ),
        checksum([7, 8]), [TURN, TURN], 1, 3, "digest",
    ),
    StoredCall(StoredPrompt(None, [7, 8], 1, "text", (0, "HistoryChanged", "why")), checksum([7, 8]), [TURN]),
]  # fmt: skip


SNAPSHOT = RolloutSnapshot(
    turn=2, size=9, sha256="5f1c", archive_bytes=20480, files=3, left_out=["/tmp/socket"], left_out_count=1, image="sha256:1",
    created_at=1_700_000_003.0, error="why",
)  # fmt: skip


MISSING = MissingImage(
    PoolKey("default", "rolloutpool"), "docker://registry.example/swe:v1", "why", permanent=True, registry_down=True,
    failures=2, since=1_700_000_001.0, until=1_700_000_009.0, trying=True,
)  # fmt: skip


ENDED = EndedAllocation(
    namespace="default", name="policy-0", uid="u", pool_kind="InferencePool", pool="policy", job_id="7", node="n1", gpus=1,
    cpus=4, submitted_at=1_700_000_000.0, started_at=1_700_000_001.0, ready_at=1_700_000_002.0, ended_at=1_700_000_009.0,
    seen_at=1_700_000_010.0, job_state="TIMEOUT", exit_code=15, reason="why", successor_of="policy-1",
)  # fmt: skip


EVALUATION = EvaluationRequest(
    name="e", pool="rolloutpool", dataset="d", tasks=2, tasks_digest="5f1c" * 16, k=4, weights_version="v2",
    sampling=LEASE.sampling, agent=LEASE.agent, budgets=LEASE.budgets,
)  # fmt: skip


async def evaluation_as_json(store: Store) -> Any:
    found = await store.evaluations.get(EvaluationKey("default", "e"))
    assert found is not None
    return {"created_at": found.created_at, "request": found.request.model_dump(mode="json")}


async def ended_as_json(store: Store) -> Any:
    return [one.model_dump(mode="json") for one in await store.ended_allocations.since(0.0)]


def missing_as_json(tx: Transaction) -> Any:
    return json.loads(json.dumps([asdict(one) for one in tx.missing_images()]))


def snapshots_as_json(found: list[StoredSnapshot]) -> Any:
    return json.loads(json.dumps([[one.about.model_dump(), one.blob and _plain(one.blob)] for one in found]))


def turns_as_json(found: tuple[ResumeState, list[bytes]]) -> Any:
    state, turns = found
    assert state.snapshot is not None
    stored = [state.turn_bytes, snapshots_as_json([state.snapshot]), state.resumptions, [one.decode() for one in turns]]
    return json.loads(json.dumps(stored))


async def put_sessions(store: Store) -> None:
    """A session of each state; the open one has a call of each kind."""
    for state in ("Open", "Closed", "Removed"):
        await store.sessions.add(replace(SESSION, instance=f"i-{state}", id=state))
    calls = [StoredCallBytes(turn, call.to_bytes()) for turn, call in enumerate(CALLS)]
    await store.sessions.append("i-Open", calls, SESSION.progress)
    await store.sessions.note({"i-Open": 7.5}, [("i-Open", 0)])
    await store.sessions.close("i-Closed")
    await store.sessions.remove("i-Removed", "it was deleted")


async def read_sessions(store: Store) -> Any:
    kept, removed = await store.sessions.load()
    calls = await store.sessions.calls("i-Open")
    bodies = [asdict(StoredCall.from_bytes(call.body)) for call in calls]
    delivered = [call.delivered for call in calls]
    found = {"sessions": [asdict(one) for one in kept], "removed": removed, "calls": bodies, "delivered": delivered}
    return json.loads(json.dumps(found))


TRACK = TrackKey("InferencePool", "default", "policy", "default/policy-ip-0")
DECISION = StoredDecision("InferencePool", "default", "policy", 1_700_000_001.0, 2, "why")


async def put_metrics(store: Store) -> None:
    for i in range(5):
        await store.metrics.record(1_700_000_000 + 20 * i, [(TRACK, sample([i, None, 1], "v1"))], [DECISION])


async def read_metrics(store: Store) -> Any:
    decisions = await store.metrics.decisions(*DECISION[:3], 0, 2e9)
    (rows,) = await store.metrics.read([TRACK], BucketRange(1_699_999_980, 1_700_000_100, 60))
    found = {"decisions": decisions, "rows": [(at, asdict(bucket)) for at, bucket in rows]}
    return json.loads(json.dumps(found))


async def write(folder: Path) -> Any:
    """A store with one of each kind of record; answers what is in it."""
    store = await Store.open(folder, ManualClock())
    kept = [await store.objects.create(obj) for obj in objects()]
    frame = zstandard.compress(encode([OUTCOME]), 1)

    def put(tx: Transaction) -> list[RolloutRecord]:
        blob = tx.add_blob(frame)
        put_batches(tx.batches)
        records = [tx.put(record_of(status, blob)) for status in Status]
        tx.put_snapshot(records[0], StoredSnapshot(SNAPSHOT, blob))
        tx.put_turns(records[0], 0, [b"one", b"two"], RESUMPTION.model_dump())
        tx.put_resume_snapshot(records[0], StoredSnapshot(SNAPSHOT, blob))
        tx.put_missing_image(MISSING)
        return records

    records = await store.rollouts.transact(put)
    batches = await store.rollouts.transact(lambda tx: read_batches(tx.batches))
    snapshots = snapshots_as_json(await store.rollouts.snapshots(records[0]))
    turns = turns_as_json(await store.rollouts.saved_turns(records[0]))
    missing = await store.rollouts.transact(missing_as_json)
    await put_sessions(store)
    await store.ended_allocations.add(ENDED)
    await store.evaluations.create("default", EVALUATION, 1_700_000_000.0)
    ended, sessions, evaluation = (
        await ended_as_json(store),
        await read_sessions(store),
        await evaluation_as_json(store),
    )
    await put_metrics(store)
    metrics = await read_metrics(store)
    await store.close()
    return {
        "objects": [obj.dump() for obj in kept],
        "rollouts": [as_json(r) for r in records],
        "batches": batches,
        "snapshots": snapshots,
        "saved_turns": turns,
        "missing_images": missing,
        "ended_allocations": ended,
        "evaluation": evaluation,
        "sessions": sessions,
        "metrics": metrics,
        "outcome": json.loads(OUTCOME.model_dump_json()),
    }


def main() -> None:
    target = FOLDER / f"schema-{SCHEMA}"
    known = {target.name}
    for unreleased in (path for path in FOLDER.iterdir() if path.name not in known):
        shutil.rmtree(unreleased)
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        told = asyncio.run(write(folder))
        with closing(sqlite3.connect(folder / "rollyard.db")) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            text = "\n".join([*db.iterdump(), f"PRAGMA user_version={version};"])
        target.mkdir(parents=True)
        (target / "rollyard.sql").write_text(text + "\n")
        (target / "contents.json").write_text(json.dumps(told, indent=1) + "\n")
        shutil.copytree(folder / "blobs", target / "blobs")
    print(target.name)


if __name__ == "__main__":
    main()
