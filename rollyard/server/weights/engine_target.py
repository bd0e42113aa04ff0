"""Weights target of one engine, and whether new work may go to it because of its weights. Pure, from the pool's status."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rollyard.kinds.base import Reason, evolve
from rollyard.kinds.weights import WeightsOperation, WeightsRecord, WeightsStatus
from rollyard.wire.engine import WeightsReport, WeightsTarget

WEIGHTS_UPDATING = Reason("WeightsUpdating")


@dataclass(frozen=True, slots=True)
class EndpointWeights:
    """Last report of an endpoint, and how this server got the report."""

    id: str
    report: WeightsReport = field(default_factory=WeightsReport)
    is_heard: bool = False
    """Whether this server got a report recently."""
    known_for: float = math.inf
    """Seconds for which this server has listened; for a silent endpoint, since its last report, if there was one."""
    healthy: bool = False
    acknowledged: WeightsTarget | None = None
    """Target that the endpoint had received before this report."""

    @property
    def is_serving(self) -> bool:
        return self.is_heard and self.healthy and bool(self.report.version) and self.report.settled


def has_weights(member: EndpointWeights, record: WeightsRecord) -> bool:
    report = member.report
    same_content = not (record.proven and report.checksum) or record.proven == report.checksum
    return report.version == record.version and report.settled and same_content


def is_at_target(member: EndpointWeights, operation: WeightsOperation) -> bool:
    """Whether the endpoint serves the operation's target.

    Until an endpoint has reported the checksum, this one must also have received the target. Otherwise its weights may
    be from another folder, which an earlier target named with the same version.
    """
    target, progress = operation.target, operation.endpoints.get(member.id)
    if target.proven is not None or not member.report.checksum:
        return has_weights(member, target)
    return has_weights(member, target) and member.acknowledged == target_of(
        target, progress.attempt if progress is not None else None
    )


def target_for(weights: WeightsStatus, id: str, *, fresh: bool = False) -> WeightsTarget | None:
    """Target that the endpoint should serve; None for its first weights. `fresh`: it just started and serves nothing yet."""
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
    """Target of an ended update: its trainer no longer waits to transfer the weights."""
    return evolve(order, transfer=False)


def target_of(record: WeightsRecord, attempt: int | None = None) -> WeightsTarget:
    """Target of a record. `attempt`: that of a retry. A retry gets the checksum, since its engine may have read other files."""
    return WeightsTarget(
        version=record.version,
        mode=record.mode,
        path=record.path,
        adapter=record.adapter,
        checksum=record.checksum or (record.proven if attempt is not None else None),
        attempt=record.attempt if attempt is None else attempt,
        transfer=record.transfer,
    )


def why_not_routable(weights: WeightsStatus, member: EndpointWeights) -> Reason | None:
    """Reason why no new work may go to the endpoint; None if its weights are no obstacle."""
    operation, current = weights.operation, weights.current
    progress = operation.endpoints.get(member.id) if operation is not None else None
    if operation is not None and operation.is_running:
        if is_at_target(member, operation):
            return None
        if progress is None or progress.phase == "Waiting":
            if current is None or weights.record(member.report.version) is not None:
                return None
            return _why_unproven(current, member.report)
        if progress.phase == "Failed":
            return Reason("WeightsFailed", f"{operation.target.version}: {progress.reason}")
        return WEIGHTS_UPDATING
    if current is None or has_weights(member, current):
        return None
    if progress is not None and progress.phase == "Failed":
        return Reason("WeightsFailed", f"{current.version}: {progress.reason}")
    return _why_unproven(current, member.report)


def _why_unproven(current: WeightsRecord, report: WeightsReport) -> Reason:
    if report.phase == "Failed":
        why = report.error or "the engine gives no reason"
        return Reason("WeightsUnavailable", f"{current.version} from {current.source}: {why}")
    if report.phase or not report.version:
        return WEIGHTS_UPDATING
    if report.version == current.version:
        why = f"its folder has checksum {report.checksum}, but {current.version} has {current.proven}"
        return Reason("WeightsUnavailable", why)
    if current.origin == "Spec":
        return Reason(
            "WeightsUnavailable",
            f"{current.path} now contains {report.version}, but the pool serves {current.version}; "
            f"to serve it, run `rollyard weights POOL --version {report.version} --path {current.path}`",
        )
    return WEIGHTS_UPDATING
