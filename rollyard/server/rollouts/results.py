"""Trajectories for trainers, made from a record and the stored tokens of its RUN, which are columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zstandard

from rollyard.core.errors import Invalid, NotFound, TooLarge
from rollyard.kinds.base import Reason
from rollyard.kinds.rollout import RolloutRequest, RolloutView, Stage, Status
from rollyard.store.base import RolloutRecord, StoredSnapshot
from rollyard.trajectory import Outcome
from rollyard.trajectory.columns import Columns, columns_of, decode
from rollyard.trajectory.frames import unframed
from rollyard.wire.node import MAX_RESULT_BYTES, ResultHeader

MAX_HEADER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Upload:
    """End of a rollout or of its RUN, with tokens and artifact. The frames are compressed; None: absent."""

    header: ResultHeader
    outcome: bytes | None = None
    artifact: bytes | None = None


def split_upload(body: bytes) -> Upload:
    """Split an upload into the header (one line of JSON) and its zstd frames. Raises Invalid, TooLarge."""
    line, newline, rest = body.partition(b"\n")
    if not newline or len(line) > MAX_HEADER_BYTES:
        raise Invalid("a result must be one line of JSON (ResultHeader) followed by at most two frames")
    try:
        header = ResultHeader.model_validate_json(line, extra="ignore")
        frames = unframed(rest)
        sizes = [zstandard.get_frame_parameters(frame).content_size for frame in frames]
    except (ValueError, zstandard.ZstdError) as error:
        raise Invalid(f"this is not a result: {error}") from None
    if len(frames) > 2:
        raise Invalid(f"a result has at most two frames; this one has {len(frames)}")
    for size in sizes:
        if size in (zstandard.CONTENTSIZE_ERROR, zstandard.CONTENTSIZE_UNKNOWN):
            raise Invalid("a zstd frame must state its content size")
        if size > MAX_RESULT_BYTES:
            raise TooLarge(f"a result may have at most {MAX_RESULT_BYTES} bytes; this one has {size}")
    return Upload(header, *frames)


def decompress(frame: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=MAX_RESULT_BYTES)


def view(record: RolloutRecord, stage: Stage | None = None, waiting: Reason | None = None) -> RolloutView:
    """Return the record as an entry of a list.

    `stage`: stage that the holder reported after the record was written. `waiting`: reason why the rollout waits.
    """
    return RolloutView(
        id=record.id,
        namespace=record.namespace,
        pool=record.pool,
        task_kind=record.task_kind,
        group=record.group,
        sample_index=record.sample_index,
        mode=record.mode,
        priority=record.priority,
        status=record.status,
        stage=None if record.status.terminal else stage or record.stage,
        attempt=record.attempt,
        reward=record.reward,
        error=record.error,
        node=record.node,
        endpoints=dict(record.endpoints) if record.status is not Status.QUEUED else {},
        created_at=record.created_at,
        finished_at=record.finished_at,
        cursor=record.cursor,
        weights_versions=_weights_versions(record),
        outdated=record.outdated,
        waiting=waiting,
        metadata=dict(record.metadata),
        artifact="Kept" if record.artifact is not None else "Deleted" if record.artifact_deleted else None,
        task=record.task,
        tokens=record.tokens,
        turns=record.turns,
        seconds=record.seconds,
        failed_calls=record.failed_calls,
        lost=record.lost,
    )


def _weights_versions(record: RolloutRecord) -> list[str]:
    """Return those of the stored tokens; before there are any, that of the endpoint that will sample them."""
    if record.sampled_by or record.status.terminal or not record.weights_version:
        return list(record.sampled_by)
    return [record.weights_version]


def trajectory(record: RolloutRecord, outcome: bytes | None) -> Columns:
    """Return the trajectory as columns. The stored outcome is not validated here; the node agent validated it. Raises
    ValueError."""
    found = columns_of([Outcome(status=Status.CANCELLED)]) if outcome is None else decode(outcome)
    return found.with_samples([_fields(record, found.samples[0])])


def _fields(record: RolloutRecord, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the trajectory, without segments and turns.

    Identity, status, reward, metrics and error come from the record, because only the record decides how the rollout ended.
    """
    summary = record.summary
    seconds = {word: summary.get(word, outcome["timings"].get(word)) for word in ("init", "run", "eval")}
    timings = {**seconds, "queued": round(record.queued_seconds, 6)}
    request = RolloutRequest.model_validate_json(record.request)
    fork = request.agent.fork_from
    return {
        "regrade_of": request.regrade_of,
        "forked_from": fork.model_dump() if fork is not None else None,
        "id": record.id,
        "namespace": record.namespace,
        "group": record.group,
        "sample_index": record.sample_index,
        "attempt": record.attempt,
        "mode": record.mode,
        "status": record.status.value,
        "reward": record.reward,
        "parts": summary.get("parts", {}) if record.status.scored else {},
        "metrics": summary.get("metrics", {}) if record.status.scored else {},
        "notes": summary.get("notes", []) if record.status.scored else [],
        "task": request.task.model_dump(),
        "timings": timings,
        "breaks": outcome["breaks"],
        "endpoint": outcome["endpoint"],
        "node": outcome["node"] or record.node,
        "error": record.error.model_dump(mode="json") if record.error else None,
        "harness_output": outcome.get("harness_output"),
        "cut_short": outcome.get("cut_short"),
        "role_calls": outcome.get("role_calls", []),
        "resumptions": outcome.get("resumptions", []),
    }


def turns(frame: bytes) -> list[dict[str, Any]]:
    """Return the turns of a stored outcome as JSON objects. Input: a zstd frame."""
    return decode(decompress(frame)).turns()


def snapshot_of_turn(record: RolloutRecord, stored: list[StoredSnapshot], turn: str) -> StoredSnapshot:
    """Return the snapshot with an archive. Raises NotFound, with the reason if there is none."""
    found = next((one for one in stored if str(one.about.turn) == turn), None)
    if found is None:
        turns = ", ".join(str(one.about.turn) for one in stored if one.blob is not None)
        there = f"there are snapshots after turns {turns}" if turns else "`agent.snapshots` of its request decides"
        raise NotFound(f"rollout {record.id!r} has no snapshot after turn {turn}; {there}")
    if found.blob is None:
        raise NotFound(f"rollout {record.id!r} has no snapshot after turn {turn}: {found.about.error}")
    return found
