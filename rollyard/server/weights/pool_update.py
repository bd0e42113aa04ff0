"""Update of a pool's weights, computed from the pool's status and from the last reports of the pool's endpoints. Pure.

`begin` accepts an update, and `advance` computes its next step. The status contains the whole state of the update, so a
server can continue the update after a crash at any point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rollyard.core.errors import Conflict
from rollyard.kinds.base import evolve
from rollyard.kinds.event import PoolEvent
from rollyard.kinds.weights import (
    KEPT_VERSIONS,
    EndpointProgress,
    WeightsOperation,
    WeightsRecord,
    WeightsStatus,
    WeightsUpdate,
)
from rollyard.server.weights.engine_target import EndpointWeights, has_weights, is_at_target, target_of

ENDPOINTS_PER_RELOAD = 4
"""In mode Drain, n // ENDPOINTS_PER_RELOAD of a pool's n endpoints reload at a time, but at least one. The others keep
serving. Endpoints that serve nothing reload at once, without this limit."""
GIVE_UP_FAILURES = 3
"""In mode Drain, an update is given up after this many failed endpoints, if no endpoint has succeeded. The other endpoints
keep their weights."""


@dataclass(frozen=True, slots=True)
class WeightsStep:
    weights: WeightsStatus
    events: tuple[PoolEvent, ...] = ()


# request for an update


def begin(weights: WeightsStatus, model: str, update: WeightsUpdate, now: datetime) -> tuple[WeightsStatus, bool]:
    """Return the status with this update, and whether the update changed it.

    If the same update is running, nothing changes. If the version is already current and no update is running, only
    failed endpoints retry. An update to another version replaces a running update. Raises Conflict if the version was
    used for other weights, or if an update to this version is running with another source, mode, transfer or time
    limit.
    """
    weights = _follow_spec_model(weights, model, now).weights
    last = weights.operation
    if last is not None and last.is_running and last.target.version == update.version:
        if not (_same_source(last.target, update) and _is_same_mode(last, update)):
            raise Conflict(
                f"version {update.version!r} is being loaded from {last.target.source} in mode "
                f"{last.target.mode}{_moved_by(last.target)}; "
                "send the same body to attach to this update, or another version to replace it"
            )
        return weights, False
    known = weights.record(update.version)
    if known is not None and not _same_source(known, update):
        raise Conflict(
            f"version {update.version!r} is {known.source}{_proof(known)}; use another version name for other weights"
        )
    current = weights.current
    if current is not None and current.version == update.version and not (last is not None and last.is_running):
        return _retry_current(weights, update, now)
    supersedes = last.target.version if last is not None and last.is_running else None
    target = WeightsRecord(
        version=update.version,
        path=update.path,
        adapter=update.adapter,
        checksum=update.checksum,
        proven=known.proven if known is not None else update.checksum,
        mode=update.mode,
        attempt=weights.orders + 1,
        transfer=update.transfer,
        since=now,
    )
    operation = WeightsOperation(
        target=target, timeout_seconds=update.timeout_seconds, started_at=now, supersedes=supersedes
    )
    return evolve(weights, operation=operation, orders=target.attempt), True


def _retry_current(weights: WeightsStatus, asked: WeightsUpdate, now: datetime) -> tuple[WeightsStatus, bool]:
    """Retry the current version at endpoints that failed. If none failed, nothing changes."""
    last = weights.operation
    if last is None or not any(p.phase == "Failed" for p in last.endpoints.values()):
        return weights, False
    orders = weights.orders + 1
    again = EndpointProgress(since=now, attempt=orders)
    endpoints = {id: again if p.phase == "Failed" else p for id, p in last.endpoints.items()}
    # `transfer` is taken from the new request, because the trainer may have stopped or restarted since the last request.
    target = evolve(last.target, transfer=asked.transfer)
    update = {"target": target, "phase": "Pending", "message": "", "endpoints": endpoints}
    update |= {"started_at": now, "finished_at": None}
    return evolve(weights, operation=evolve(last, **update), orders=orders), True


def _same_source(known: WeightsRecord, update: WeightsUpdate) -> bool:
    known_sum = known.proven or known.checksum
    sums = update.checksum is None or known_sum is None or update.checksum == known_sum
    return (known.path, known.adapter) == (update.path, update.adapter) and sums


def _is_same_mode(operation: WeightsOperation, update: WeightsUpdate) -> bool:
    target = operation.target
    way = (target.mode, target.transfer, operation.timeout_seconds)
    return way == (update.mode, update.transfer, update.timeout_seconds)


def _moved_by(target: WeightsRecord) -> str:
    return ", moved by its trainer" if target.transfer else ""


def _proof(record: WeightsRecord) -> str:
    return f" with checksum {record.proven}" if record.proven else ""


# progress


def advance(weights: WeightsStatus, model: str, members: Sequence[EndpointWeights], now: datetime) -> WeightsStep:
    """Return the next step of the operation, computed from the endpoints' reports.

    `model`: model folder in the spec. `members`: endpoints that serve this model.
    """
    step = _follow_spec_model(weights, model, now)
    weights, operation = step.weights, step.weights.operation
    if operation is None or not operation.is_running:
        return WeightsStep(_refresh_failures(_set_initial_version(weights, model, members, now), members), step.events)
    advanced = _advance_operation(weights, operation, members, now)
    return WeightsStep(advanced.weights, (*step.events, *advanced.events))


def _follow_spec_model(weights: WeightsStatus, model: str, now: datetime) -> WeightsStep:
    """Reset the weights if the spec has a new model, because earlier updates were made for the earlier model."""
    if weights.model == model:
        return WeightsStep(weights)
    if not weights.model:
        return WeightsStep(evolve(weights, model=model))
    if (operation := weights.operation) is not None:
        superseded = {"phase": "Superseded", "finished_at": now, "message": f"spec.model.path is now {model}"}
        operation = evolve(operation, endpoints={}, **(superseded if operation.is_running else {}))
    update = {"model": model, "current": None, "operation": operation}
    event = PoolEvent(
        "WeightsReset", f"spec.model.path is now {model}: new allocations serve the weights of this folder"
    )
    return WeightsStep(evolve(weights, **update), (event,))


def _set_initial_version(
    weights: WeightsStatus, model: str, members: Sequence[EndpointWeights], now: datetime
) -> WeightsStatus:
    """If there is no current version, make the version of a serving endpoint the current one.

    The version of the spec's own model is the checksum of the model folder, as reported by the endpoint. But if the
    endpoint serves the version of a failed first update, this version becomes current.
    """
    if weights.current is not None:
        return weights
    last = weights.operation
    late = last.target if last is not None and last.phase == "Failed" else None
    for member in (m for m in members if m.is_serving):
        report = member.report
        if last is not None and late is not None and has_weights(member, late):
            record = evolve(late, proven=late.proven or report.checksum or None)
            message = f"{late.version} is served late, first by {member.id}"
            update = {"target": record, "phase": "Complete", "message": message}
            weights = evolve(weights, operation=evolve(last, **update))
        elif report.checksum in ("", report.version) and (late is None or late.version != report.version):
            record = WeightsRecord(
                version=report.version, path=model, proven=report.checksum or None, origin="Spec", attempt=0, since=now
            )
        else:
            continue
        return _with_current(weights, record)
    return weights


def _refresh_failures(weights: WeightsStatus, members: Sequence[EndpointWeights]) -> WeightsStatus:
    """Remove the failures of endpoints that serve the current weights by now, or no longer exist."""
    operation, by_id = weights.operation, {m.id: m for m in members}
    if operation is None or weights.current is None:
        return weights
    left = {
        id: evolve(progress, phase="Done", reason="") if has_weights(by_id[id], weights.current) else progress
        for id, progress in operation.endpoints.items()
        if id in by_id
    }
    kept = _kept_progress(left)
    if kept == operation.endpoints:
        return weights
    return evolve(weights, operation=evolve(operation, endpoints=kept))


def _kept_progress(endpoints: dict[str, EndpointProgress]) -> dict[str, EndpointProgress]:
    """Return the progress of those endpoints that failed or have an attempt number.

    The attempt number is kept, because it is part of the target, and a target that was reached must not change.
    """
    return {id: p for id, p in endpoints.items() if p.phase == "Failed" or p.attempt is not None}


def _advance_operation(
    weights: WeightsStatus, operation: WeightsOperation, members: Sequence[EndpointWeights], now: datetime
) -> WeightsStep:
    if not members:
        return WeightsStep(
            evolve(weights, operation=evolve(operation, done=0, endpoints={}, message=_waits(operation)))
        )
    events: list[PoolEvent] = []
    if operation.phase == "Pending":
        events.append(PoolEvent("WeightsUpdateStarted", _initial_progress(operation, len(members))))
    for member in members:  # the first reported checksum becomes the target's checksum
        if operation.target.proven is None and member.report.checksum and is_at_target(member, operation):
            target = evolve(operation.target, proven=member.report.checksum)
            operation = evolve(operation, target=target)
    before = operation.endpoints
    endpoints = {m.id: _progress(operation, before.get(m.id), m, now) for m in members}
    events += [
        PoolEvent("WeightsUpdateFailed", f"{operation.target.version} on {id}: {p.reason}", warning=True)
        for id, p in endpoints.items()
        if p.phase == "Failed" and (id not in before or before[id].phase != "Failed")
    ]
    endpoints = _next_to_update(operation, endpoints, members, now)
    done = sum(p.phase == "Done" for p in endpoints.values())
    update = {"phase": "Updating", "total": len(members), "done": done, "endpoints": endpoints, "message": ""}
    operation = evolve(operation, **update)
    weights = evolve(weights, operation=operation)
    if done:
        weights = _with_record(weights, operation.target)
    ended = _finish_if_done(weights, operation, now)
    return WeightsStep(ended.weights, (*events, *ended.events))


def _waits(operation: WeightsOperation) -> str:
    """Text of an update while the pool has no endpoint. The server cannot tell whether an engine could serve the weights:
    their folder may exist only on the engines' nodes."""
    target = operation.target
    return (
        f"waits for the pool's first endpoint, which shows whether {target.version} can be served from {target.source}"
    )


def _initial_progress(operation: WeightsOperation, members: int) -> str:
    target = operation.target
    before = f", instead of the update to {operation.supersedes}" if operation.supersedes else ""
    by_trainer = _moved_by(target)
    return f"{target.version} from {target.source} on {members} endpoints, mode {target.mode}{by_trainer}{before}"


def _progress(
    operation: WeightsOperation, before: EndpointProgress | None, member: EndpointWeights, now: datetime
) -> EndpointProgress:
    progress = before or EndpointProgress(since=now)
    target, report = operation.target, member.report
    if is_at_target(member, operation):
        return _in_phase(progress, "Done", now, _why_from_folder(member, target))
    if progress.phase == "Failed":
        return progress
    # An engine whose target contains the checksum reports a mismatch itself, after it has read the files again.
    has_checksum = target_of(target, progress.attempt).checksum is not None
    if (
        report.version == target.version
        and report.settled
        and not has_checksum
        and _is_about_target(member, target, progress)
    ):
        return _in_phase(progress, "Failed", now, f"its folder has checksum {report.checksum}, not {target.proven}")
    if progress.phase == "Ordered" and report.phase == "Failed" and _is_about_target(member, target, progress):
        return _in_phase(progress, "Failed", now, report.error or "it gives no reason")
    if progress.phase == "Ordered" and target.transfer:
        progress = _transfer_progress(progress, member, target)
    if progress.phase == "Done":  # the engine was restarted, and loads again or has not reported yet
        return _in_phase(progress, "Ordered", now) if member.is_heard else progress
    turn_to_come = progress.phase == "Waiting" and member.is_heard
    waited = min((now - progress.since).total_seconds(), member.known_for)
    if waited > operation.timeout_seconds and not turn_to_come:
        how = f"it is {report.phase or 'not updating'}" if member.is_heard else "it no longer reports"
        return _in_phase(progress, "Failed", now, f"not done after {operation.timeout_seconds} s: {how}")
    return progress


def _transfer_progress(progress: EndpointProgress, member: EndpointWeights, target: WeightsRecord) -> EndpointProgress:
    """Return the progress of a transfer: whether the endpoint waits for the trainer, or why it does not wait."""
    if not (member.is_heard and member.healthy):
        return evolve(progress, transferring=False, reason="its engine is not running")
    if not _is_about_target(member, target, progress):
        return progress
    waits = member.report.phase == "Transferring"
    return evolve(progress, transferring=waits, reason=_why_from_folder(member, target))


def _why_from_folder(member: EndpointWeights, target: WeightsRecord) -> str:
    """Return why the endpoint read the folder although the update has a transfer; empty if there is no such reason."""
    if not target.transfer:
        return ""
    return "its release of Rollyard does not support transfers" if member.report.note is None else member.report.note


def _is_about_target(member: EndpointWeights, target: WeightsRecord, progress: EndpointProgress) -> bool:
    """Whether the member's report is about this target, and not about an earlier target."""
    order = target_of(target, progress.attempt)
    return member.acknowledged == order if member.report.attempt is None else member.report.attempt == order.attempt


def _in_phase(progress: EndpointProgress, phase: str, now: datetime, reason: str = "") -> EndpointProgress:
    if progress.phase == phase:
        return progress
    return evolve(progress, phase=phase, since=now, reason=reason, transferring=False)


def _next_to_update(
    operation: WeightsOperation,
    endpoints: dict[str, EndpointProgress],
    members: Sequence[EndpointWeights],
    now: datetime,
) -> dict[str, EndpointProgress]:
    """Begin the update at endpoints that wait for it and report. All endpoints that serve nothing begin. Of the serving
    endpoints, as many begin as the mode permits."""
    phases = [p.phase for p in endpoints.values()]
    waiting = [m for m in members if endpoints[m.id].phase == "Waiting" and m.is_heard]
    free = [m for m in waiting if not m.is_serving]
    serving = [m for m in waiting if m.is_serving]
    room = len(serving)
    if operation.target.mode == "Drain":
        room = max(1, len(members) // ENDPOINTS_PER_RELOAD) - phases.count("Ordered")
        if not phases.count("Done") and phases.count("Failed") >= GIVE_UP_FAILURES:
            room = 0
    chosen = {m.id for m in (*free, *serving[: max(0, room)])}
    return {id: _in_phase(p, "Ordered", now) if id in chosen else p for id, p in endpoints.items()}


def _with_record(weights: WeightsStatus, record: WeightsRecord) -> WeightsStatus:
    """Return the status with this version as the newest in the history."""
    there = weights.record(record.version)
    if there is not None and there is weights.history[-1]:
        numbered = evolve(record, number=there.number)
    else:
        numbered = evolve(record, number=weights.next_number)
    kept = [r for r in weights.history if r.version != record.version]
    update: dict[str, Any] = {"history": [*kept, numbered][-KEPT_VERSIONS:]}
    if weights.current is not None and weights.current.version == record.version:
        update["current"] = numbered
    return evolve(weights, **update)


def _with_current(weights: WeightsStatus, record: WeightsRecord) -> WeightsStatus:
    """Return the status with this version as the current one, and as the newest in the history."""
    return _with_record(evolve(weights, current=record), record)


def _finish_if_done(weights: WeightsStatus, operation: WeightsOperation, now: datetime) -> WeightsStep:
    """End the operation once no endpoint is being updated. Endpoints that wait for their update keep the operation
    running, unless the operation is given up.

    If endpoints failed and none succeeded, the earlier version stays current.
    """
    phases = [p.phase for p in operation.endpoints.values()]
    failed, done = phases.count("Failed"), phases.count("Done")
    hopeless = operation.target.mode == "Drain" and not done and failed >= GIVE_UP_FAILURES
    if "Ordered" in phases or ("Waiting" in phases and not hopeless):
        return WeightsStep(weights)
    target, seconds = operation.target, (now - operation.started_at).total_seconds()
    first = next((f"{id}: {p.reason}" for id, p in operation.endpoints.items() if p.phase == "Failed"), "")
    if failed and not done:
        stays = weights.current.version if weights.current is not None else "the present version of each"
        message = (
            f"{target.version} failed on {failed} of {len(phases)} endpoints and no endpoint serves it; {stays} stays"
        )
        given_up = PoolEvent("WeightsUpdateGivenUp", message, True)
        return _close_operation(weights, operation, "Failed", f"{message}. {first}", given_up, now)
    message = f"{target.version} was served by {done} of {len(phases)} endpoints after {seconds:.1f} s"
    message += _from_folder(operation)
    event = PoolEvent("WeightsUpdated", message, warning=bool(failed))
    words = f"{message}. {first}" if failed else message
    return _close_operation(_with_current(weights, target), operation, "Complete", words, event, now)


def _from_folder(operation: WeightsOperation) -> str:
    """Text about endpoints that read the folder although the update has a transfer."""
    why = [f"{id}: {p.reason}" for id, p in operation.endpoints.items() if p.phase == "Done" and p.reason]
    return f", {len(why)} of them without a transfer ({why[0]})" if why else ""


def _close_operation(
    weights: WeightsStatus, operation: WeightsOperation, phase: str, message: str, event: PoolEvent, now: datetime
) -> WeightsStep:
    update = {
        "phase": phase,
        "message": message,
        "finished_at": now,
        "endpoints": _kept_progress(operation.endpoints) if phase == "Complete" else {},
    }
    return WeightsStep(evolve(weights, operation=evolve(operation, **update)), (event,))
