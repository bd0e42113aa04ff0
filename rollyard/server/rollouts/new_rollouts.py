"""Makes records from requests, and inserts them. The digest of a record shows whether two request bodies are equal."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from rollyard.core.errors import Conflict, Invalid
from rollyard.core.replaced_fields import replace
from rollyard.kinds.base import evolve
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutRequest, Stage
from rollyard.kinds.values.image_reference import normal_form
from rollyard.store.base import QueueRanks, RolloutRecord
from rollyard.store.rollout_transaction import Transaction

MAX_PER_REQUEST = 4096
MAX_TASK_BYTES = 1 << 20
MAX_IMAGE_CHARS = 1024


def expand(
    namespace: str, request: RolloutRequest, now: float, endpoints: Mapping[str, str] | None = None
) -> list[RolloutRecord]:
    """Return the n records of one request, with their ids. `endpoints`: preferred endpoints, by role. Raises Invalid if the
    request is too large."""
    name = request.id or f"r-{secrets.token_hex(8)}"
    group = request.group or (name if request.n > 1 else None)
    single = evolve(request, n=1, id=None, group=group)
    body = single.model_dump_json()
    if len(body) > MAX_TASK_BYTES:
        raise too_large(len(body))
    text = single.model_dump_json(exclude_defaults=True)  # a new field in a later release then changes no digest
    task = request.task
    image, eval_image = (
        normal_form(name)[:MAX_IMAGE_CHARS] if name else "" for name in (task.image, task.evaluator_image)
    )
    task_digest = task.digest
    records = []
    for index in range(request.n):
        id = f"{name}.{index}" if request.n > 1 else name
        digest = hashlib.sha256(f"{request.n}/{index}/{text}".encode()).hexdigest()
        records.append(
            RolloutRecord(
                namespace=namespace,
                id=id,
                digest=digest,
                request=body,
                pool=request.pool,
                task_kind=request.task.kind,
                group=group,
                sample_index=index,
                mode=request.mode,
                priority=request.priority,
                created_at=now,
                endpoints=dict(endpoints or {}),
                queued_at=now,
                min_weights_version=request.min_weights_version,
                weights=request.weights,
                image=image,
                stage=Stage.INIT if request.regrade_of is None else Stage.EVAL,
                eval_image=eval_image if eval_image != image else "",
                metadata=task.metadata,
                task=task_digest,
            )
        )
    return records


def too_large(size: int) -> Invalid:
    return Invalid(
        f"a request may have at most {MAX_TASK_BYTES} bytes, but this one has {size}; put large data into the image"
    )


def accept(tx: Transaction, records: Sequence[RolloutRecord]) -> list[tuple[RolloutRecord, bool]]:
    """Insert the new records. Return a pair (stored record, whether it is new) for each of `records`.

    Raises Conflict if an existing record has another body, or if a group belongs to a batch, and Invalid if there is nothing
    to score again. The caller must then undo the transaction.
    """
    for namespace, group in {(r.namespace, r.group) for r in records if r.group is not None}:
        if (found := tx.batches.group(namespace, group)) is not None:
            raise Conflict(f"group {group!r} belongs to the batches of series {found.series!r}; choose another group")
    accepted = []
    submitted: dict[PoolKey, QueueRanks] = {}
    for record in records:
        there = tx.get(record.namespace, record.id)
        if there is None:
            ranks = submitted.get(record.pool_key) or tx.queue_ranks(record.pool_key)
            rank = ranks.first(ranks.submitted)
            submitted[record.pool_key] = replace(ranks, submitted=rank)
            if record.stage is Stage.EVAL:
                record = _with_stored_run(tx, record)
            accepted.append((tx.put(replace(record, queue_rank=rank)), True))
        elif there.digest == record.digest:
            accepted.append((there, False))
        else:
            raise Conflict(
                f"rollout {record.id!r} exists with another body; choose another id, or send the same body as before"
            )
    for pool, ranks in submitted.items():
        tx.put_queue_ranks(pool, ranks)
    return accepted


def _with_stored_run(tx: Transaction, record: RolloutRecord) -> RolloutRecord:
    """Return the record of a rollout that begins at EVAL, with what the RUN of the earlier rollout has left."""
    id = RolloutRequest.model_validate_json(record.request).regrade_of
    earlier = tx.get(record.namespace, str(id))
    if earlier is None or not earlier.status.terminal:
        raise Invalid(f"`regrade_of` must name an ended rollout; {id!r} {'has not ended' if earlier else 'is unknown'}")
    if earlier.result is None or earlier.artifact is None:
        why = (
            "is deleted (artifactTtlSecondsAfterFinished of its pool)"
            if earlier.artifact_deleted
            else "was never stored"
        )
        raise Invalid(f"rollout {id!r} cannot be scored again: its artifact {why}")
    return replace(
        record,
        result=earlier.result,
        artifact=earlier.artifact,
        weights_version=earlier.weights_version,
        sampled_by=earlier.sampled_by,
    )
