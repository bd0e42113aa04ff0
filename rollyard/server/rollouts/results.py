"""Trajectories for trainers, made from a record and its stored outcome.

An outcome is stored in the form in which a node agent uploaded it: columns, or JSON from an older node agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import zstandard

from rollyard.core.errors import Invalid, TooLarge
from rollyard.kinds.rollout import Outcome, RolloutRequest, RolloutView, Stage, Status, Timings
from rollyard.server.store.base import RolloutRecord
from rollyard.wire.columns import Columns, columns_of, decode, is_columns
from rollyard.wire.node import MAX_RESULT_BYTES, ResultHeader

MAX_HEADER_BYTES = 64 << 10
EMPTY_OUTCOME = Outcome(status=Status.CANCELLED).model_dump(mode="json")
"""Outcome in the trajectory of a rollout without a stored outcome."""


def split_upload(body: bytes) -> tuple[ResultHeader, bytes]:
    """Split an uploaded result into the header (one line of JSON) and the zstd frame. Raises Invalid, TooLarge."""
    line, newline, frame = body.partition(b"\n")
    if not newline or len(line) > MAX_HEADER_BYTES:
        raise Invalid("a result must be one line of JSON (ResultHeader) followed by a zstd-compressed body")
    try:
        header = ResultHeader.model_validate_json(line, extra="ignore")
        size = zstandard.get_frame_parameters(frame).content_size
    except (ValueError, zstandard.ZstdError) as error:
        raise Invalid(f"this is not a result: {error}") from None
    if size in (zstandard.CONTENTSIZE_ERROR, zstandard.CONTENTSIZE_UNKNOWN):
        raise Invalid("the zstd frame must state its content size")
    if size > MAX_RESULT_BYTES:
        raise TooLarge(f"a result may have at most {MAX_RESULT_BYTES} bytes; this one has {size}")
    return header, frame


def count_sampled(frame: bytes) -> int:
    """Return the number of sampled tokens of an outcome that an older node agent uploaded as JSON in a zstd frame.
    Raises Invalid."""
    try:
        outcome = json.loads(decompress(frame))
        return sum(sum(segment["loss_mask"]) for segment in outcome["segments"])
    except (ValueError, KeyError, TypeError, zstandard.ZstdError) as error:
        raise Invalid(f"this is not a result: {error}") from None


def decompress(frame: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=MAX_RESULT_BYTES)


def view(record: RolloutRecord, stage: Stage | None = None, waiting: str | None = None) -> RolloutView:
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
        weights_version=record.weights_version,
        outdated=record.outdated,
        waiting=waiting,
    )


def trajectory(record: RolloutRecord, outcome: bytes | None) -> dict[str, Any]:
    """Return the trajectory as JSON. The stored outcome is not validated here; the node agent validated it."""
    found = EMPTY_OUTCOME
    if outcome is not None:
        found = decode(outcome).documents()[0] if is_columns(outcome) else json.loads(outcome)
    return _fields(record, found) | {"segments": found["segments"], "turns": found["turns"]}


def trajectory_columns(record: RolloutRecord, outcome: bytes | None) -> Columns:
    """Return the trajectory as columns. An outcome that is stored as JSON is converted. Raises ValueError."""
    if outcome is not None and is_columns(outcome):
        found = decode(outcome)
    else:
        text = outcome if outcome is not None else json.dumps(EMPTY_OUTCOME)
        found = columns_of([Outcome.model_validate_json(text, extra="ignore")])
    fields = _fields(record, found.samples[0])
    del fields["segments"], fields["turns"]
    return found.with_samples([fields])


def _fields(record: RolloutRecord, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the trajectory, with empty segments and turns.

    Identity, status, reward and error come from the record, because only the record decides how the rollout ended.
    """
    timings = {**Timings().model_dump(), **outcome["timings"], "queued": round(record.queued_seconds, 6)}
    request = RolloutRequest.model_validate_json(record.request)
    fork = request.agent.fork_from
    return {
        "forked_from": fork.model_dump() if fork is not None else None,
        "id": record.id,
        "namespace": record.namespace,
        "group": record.group,
        "sample_index": record.sample_index,
        "attempt": record.attempt,
        "mode": record.mode,
        "status": record.status.value,
        "reward": record.reward,
        "metrics": outcome["metrics"] if record.status.scored else {},
        "task": request.task.model_dump(),
        "segments": [],
        "turns": [],
        "timings": timings,
        "breaks": outcome["breaks"],
        "endpoint": outcome["endpoint"],
        "node": outcome["node"] or record.node,
        "error": record.error.model_dump(mode="json") if record.error else None,
        "harness_output": outcome.get("harness_output"),
        "cut_short": outcome.get("cut_short"),
    }


def turns(frame: bytes) -> list[dict[str, Any]]:
    """Return the turns of a stored outcome as JSON objects. Input: a zstd frame."""
    outcome = decompress(frame)
    if is_columns(outcome):
        return decode(outcome).turns()
    found: list[dict[str, Any]] = json.loads(outcome)["turns"]
    return found


def run_as_json(frame: bytes) -> bytes:
    """Return a stored RUN result as JSON, for a node agent that does not read columns. Input and output are zstd frames."""
    run = decompress(frame)
    if not is_columns(run):
        return frame
    found = decode(run)
    return zstandard.compress(json.dumps({"outcome": found.documents()[0], **found.about}).encode())
