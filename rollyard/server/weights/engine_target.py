"""Weights target of one engine, and the check whether the engine's weights permit new work. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rollyard.kinds.base import Reason, evolve
from rollyard.kinds.weights import WeightsOperation, WeightsRecord, WeightsStatus
from rollyard.wire.engine import WeightsReport, WeightsTarget

WEIGHTS_UPDATING = Reason("WeightsUpdating")


@dataclass(frozen=True, slots=True)
class EndpointWeights:
    """Last report of an endpoint about its weights, and how recent the report is."""

    id: str
    report: WeightsReport = field(default_factory=WeightsReport)
    is_heard: bool = False
    """Whether this server got a report recently."""
    known_for: float = math.inf
    """Seconds for which this server has known the endpoint's present condition. An update's time limit counts at most
    these seconds, so the time in which no server ran is left out. For an endpoint that is registered but sends no
    reports: the seconds since its last report or registration. Otherwise: the seconds since the server's start."""
    healthy: bool = False
    acknowledged: WeightsTarget | None = None
    """Target that the endpoint had received before it sent the report."""

    @property
    def is_serving(self) -> bool:
        return self.is_heard and self.healthy and bool(self.report.version) and self.report.settled


def has_weights(member: EndpointWeights, record: WeightsRecord) -> bool:
    report = member.report
    same_content = not (record.proven and report.checksum) or record.proven == report.checksum
    return report.version == record.version and report.settled and same_content


def is_at_target(member: EndpointWeights, operation: WeightsOperation) -> bool:
    """Whether the endpoint serves the operation's target.

    The first reported checksum becomes the checksum of the target, but only if the endpoint had received this target
    before the report. Otherwise the endpoint's weights may come from an earlier target with the same version and
    another folder.
    """
    target, progress = operation.target, operation.endpoints.get(member.id)
    if target.proven is not None or not member.report.checksum:
        return has_weights(member, target)
    return has_weights(member, target) and member.acknowledged == target_of(
        target, progress.attempt if progress is not None else None
    )


def target_for(weights: WeightsStatus, id: str, *, fresh: bool = False) -> WeightsTarget | None:
    """Target that the endpoint should serve; None for the weights of the model folder in the spec.

    `fresh`: the endpoint has just started, and serves nothing yet.
    """
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
    """Target without a transfer. The update to this target has ended, so the trainer no longer sends weights."""
    return evolve(order, transfer=False)


def target_of(record: WeightsRecord, attempt: int | None = None) -> WeightsTarget:
    """Target of a record. `attempt`: sequence number of a retry; None for the first attempt.

    The target of a retry also contains the first checksum that an engine of the pool reported (`proven`). In a
    retry, the engine compares the checksum of its files with this checksum, because in the failed attempt it may have
    read files that differ from those of the other engines.
    """
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
    """Return why the endpoint's weights do not permit new work; None if they permit it."""
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
