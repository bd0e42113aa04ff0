"""What one engine is told to serve, and whether what it serves lets it into the heap. Pure, from the pool's status."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollyard.kinds.weights import WeightsOperation, WeightsRecord, WeightsStatus
from rollyard.wire.engine import WeightsTarget


@dataclass(frozen=True, slots=True)
class EndpointWeights:
    """An endpoint as it was last heard."""

    id: str
    last_report_at: bool = False
    """Lately, by this server: what has not been heard says nothing."""
    known_for: float = math.inf
    """Seconds since this server began to listen; of what is silent, since it was heard last, if it was."""
    healthy: bool = False
    version: str = ""
    checksum: str = ""
    phase: str = ""
    error: str = ""
    attempt: int | None = None
    """Of the order that failed; None where it does not say so."""
    note: str | None = None
    """Why it read the folder where a transfer was ordered; None where it does not know of transfers."""
    acknowledged: WeightsTarget | None = None
    """The order that it had been told before it said this."""

    @property
    def settled(self) -> bool:
        """It is not on its way to another version; after a failure it still has the one before."""
        return self.phase in ("", "Failed")

    @property
    def is_serving(self) -> bool:
        return self.last_report_at and self.healthy and bool(self.version) and self.settled


def has_weights(member: EndpointWeights, record: WeightsRecord) -> bool:
    return member.version == record.version and member.settled and _same_content(member, record)


def _same_content(member: EndpointWeights, record: WeightsRecord) -> bool:
    return not (record.proven and member.checksum) or record.proven == member.checksum


def is_at_target(member: EndpointWeights, operation: WeightsOperation) -> bool:
    """Whether it has what the operation wants.

    As long as nobody has shown what that is, it must have been told: else it may be from another folder, ordered under the
    same version before.
    """
    target, progress = operation.target, operation.endpoints.get(member.id)
    if target.proven is not None or not member.checksum:
        return has_weights(member, target)
    return has_weights(member, target) and member.acknowledged == target_of(
        target, progress.attempt if progress is not None else None
    )


def target_for(weights: WeightsStatus, id: str, *, fresh: bool = False) -> WeightsTarget | None:
    """What it should serve; None for what it began with. `fresh`: it has just started, and serves nothing yet."""
    operation, current = weights.operation, weights.current
    progress = operation.endpoints.get(id) if operation is not None else None
    attempt = progress.attempt if progress is not None else None
    if operation is not None and operation.is_running:
        if fresh or (progress is not None and progress.phase != "Waiting"):
            return target_of(operation.target, attempt)
        if current is not None and current.origin == "Spec":
            return None
        return _from_folder(target_of(current)) if current is not None else None
    if current is None or (current.origin == "Spec" and (operation is None or operation.phase == "Superseded")):
        return None
    return _from_folder(target_of(current, attempt))


def _from_folder(order: WeightsTarget) -> WeightsTarget:
    """Of an update that has ended: nobody waits any more to transfer it."""
    return order.model_copy(update={"transfer": False})


def target_of(record: WeightsRecord, attempt: int | None = None) -> WeightsTarget:
    """`attempt`: of one that is tried once more; it is told what the others found, for it may have found something else."""
    return WeightsTarget(
        version=record.version,
        mode=record.mode,
        path=record.path,
        adapter=record.adapter,
        checksum=record.checksum or (record.proven if attempt is not None else None),
        attempt=record.attempt if attempt is None else attempt,
        transfer=record.transfer,
    )


def why_not_routable(weights: WeightsStatus, member: EndpointWeights) -> str:
    """Why it may not be in the heap, as `Word: what is the matter`; empty when the weights do not stand in its way."""
    operation, current = weights.operation, weights.current
    progress = operation.endpoints.get(member.id) if operation is not None else None
    if operation is not None and operation.is_running:
        if is_at_target(member, operation):
            return ""
        if progress is None or progress.phase == "Waiting":
            return (
                "" if current is None or weights.record(member.version) is not None else _why_unproven(current, member)
            )
        if progress.phase == "Failed":
            return f"WeightsFailed: {operation.target.version}: {progress.reason}"
        return "WeightsUpdating"
    if current is None or has_weights(member, current):
        return ""
    if progress is not None and progress.phase == "Failed":
        return f"WeightsFailed: {current.version}: {progress.reason}"
    return _why_unproven(current, member)


def _why_unproven(current: WeightsRecord, member: EndpointWeights) -> str:
    if member.phase == "Failed":
        why = member.error or "the engine gives no reason"
        return f"WeightsUnavailable: {current.version} from {current.source}: {why}"
    if member.phase or not member.version:
        return "WeightsUpdating"
    if member.version == current.version:
        return (
            f"WeightsUnavailable: its folder has checksum {member.checksum}, but {current.version} has {current.proven}"
        )
    if current.origin == "Spec":
        return (
            f"WeightsUnavailable: {current.path} now contains {member.version}, but the pool serves {current.version}; "
            f"to serve it, run `rollyard weights POOL --version {member.version} --path {current.path}`"
        )
    return "WeightsUpdating"
