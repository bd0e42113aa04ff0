"""`step(record, event) -> (record, effects)`: every change of a rollout, as a pure function.

A record is queued (no holder), leased (a holder and a fence) or terminal. Whichever process dies, one of the events below
follows (table of crashes in ARCHITECTURE.md).

              Granted                 RunStored               Finished
    queued ------------> leased INIT ------------> leased EVAL ---------> Completed | Truncated | Failed | InfraFailed
      ^  ^                  |                          |
      |  +--- Lost ---------+                          |      Lost: the lease ended without a result. No retry is counted.
      |                     |                          |      After some losses it runs alone; after more it ends.
      |       Finished(InfraFailed), retries left      |      The infrastructure failed. A retry is counted. (If the sandbox
      |                     |                          |      was lost, saved turns are kept, but not for the last retry.)
      |       ImageMissing                                |      Its image cannot be had now. No retry is counted.
      |       Outdated, not at EVAL                    |      Its weights became too old. No retry is counted.
      +------------------------------------------------+      Lost or InfraFailed at EVAL: only EVAL is repeated.

    Cancelled: ends a queued or leased record immediately.
    ImageGivenUp: ends a queued record whose image could not be had for too long.

While RUN goes on, its holder saves its turns (TurnsSaved). After Lost or a lost sandbox, a record with saved turns keeps its
attempt, and its next holder goes on after them. Everything else that queues the record again drops them.

Each change adds an entry to the record's history in the same step, except TurnsSaved, which only tells where a lease went on,
and what it does not save any more.

One file, so that the drawing and the code that it shows are read together.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollyard.core.errors import Fenced
from rollyard.core.replaced_fields import replace
from rollyard.kinds.failure_table import (
    CANCELLED,
    IMAGE_UNAVAILABLE,
    LOST_TOO_OFTEN,
    NO_FINITE_REWARD,
    NOTHING_SAMPLED,
    WEIGHTS_MIXED,
    Ending,
)
from rollyard.kinds.resumption import LOSSES, Resumption
from rollyard.kinds.rollout import CHECK, RolloutError, Stage, Status
from rollyard.kinds.rollout_history import HistoryEvent
from rollyard.server.rollouts.history import LeaseChoice, lease_says, most_turns_lost, with_entry
from rollyard.store.base import BlobRef, RolloutRecord
from rollyard.wire.node import IMAGE_REASON

SUSPECT_LOSSES = 3
"""After this many lost leases, a rollout is suspected as the cause. The count begins again at 0 when the result of RUN is
stored, and when a node agent has outlived the rollout beyond the turn at which others were lost. A suspected rollout gets
a node agent without other rollouts. So if this node agent is lost, no other rollout is affected, and no other rollout can
be the cause."""
MAX_LOSSES = 6
"""After this many lost leases, counted in the same way, the rollout counts as the cause, and ends."""
FRESH_LOSSES = MAX_LOSSES - 1
"""After this many lost leases the saved turns are dropped. They may be the cause, so the last try begins again."""
LOST_SANDBOX = ("SandboxLost", "SandboxSilent")
"""Reasons of faults after which a rollout goes on after its saved turns, as nothing of them was in doubt."""
MAX_OUTDATED = 10
"""A rollout starts again at most this many times because its weights became too old. If they become too old once more,
the rollout counts as too slow for the versions that it allows, and ends."""
BACKOFF_SECONDS, BACKOFF_CAP_SECONDS = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Granted:
    """A node agent gets the lease. `holder` is `<allocation uid>/<instance>`."""

    at: float
    holder: str
    node: str
    endpoints: Mapping[str, str]
    weights_version: str | None = None
    """Weights version of the policy's endpoint."""
    allocation: str = ""
    """Name of the node agent's allocation."""
    choice: LeaseChoice = field(default_factory=LeaseChoice)


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The holder reported RUN at `at`. The report comes in a heartbeat, and a heartbeat writes nothing to the store. So
    this event is stored together with the rollout's next event."""

    at: float
    fence: int


@dataclass(frozen=True, slots=True)
class EndpointMoved:
    """The model server in use failed, drains or has too much work. The rollout continues at another model server."""

    at: float
    fence: int
    role: str
    endpoint: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The holder has saved the files of the rollout's sandbox. The snapshot is stored in the same transaction, beside the
    record."""

    at: float
    fence: int


@dataclass(frozen=True, slots=True)
class TurnsSaved:
    """The holder has uploaded turns of RUN. They are stored in the same transaction, beside the record."""

    at: float
    fence: int
    turns: int
    """Number of turns that are stored now."""
    resumed: Resumption | None = None
    """Set in the first such event of a lease that followed a lost one."""
    weights_version: str | None = None
    """Version of the endpoint with which the lease began."""
    stopped: str = ""
    """Sentence about what is not saved any more; empty if nothing new."""


@dataclass(frozen=True, slots=True)
class RunStored:
    """RUN is done. Its result and artifact are in the store, so any node agent can run EVAL, and can repeat it."""

    at: float
    fence: int
    result: BlobRef
    artifact: BlobRef
    versions: tuple[str, ...] = ()
    """Weights versions that sampled the result's tokens, as reported by the holder."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds in each stage of this attempt, by the stage's name in lower case."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The holder's result. As long as retries are left, the status InfraFailed ends only this attempt."""

    at: float
    fence: int
    status: Status
    reward: float | None
    error: RolloutError | None
    result: BlobRef | None
    """The tokens, if RUN has stored none, or if there is more to store with them."""
    max_attempts: int
    sampled: int
    """Number of sampled tokens that the result contains."""
    versions: tuple[str, ...] = ()
    """Weights versions that sampled the tokens of `result`."""
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease ended without a result: it expired, was handed back or never received, or its allocation ended."""

    at: float
    fence: int
    reason: str
    handed_back: bool = False
    """True: the holder returned the lease, and the rollout was not the reason. So no loss is counted."""
    blameless: bool = False
    """True: the rollout cannot be the cause. Slurm says that something else ended the allocation, such as a preemption, or the
    holder never got the lease. So no loss is counted."""


@dataclass(frozen=True, slots=True)
class ImageMissing:
    """The holder returned the lease, because it cannot have the sandbox image now."""

    at: float
    fence: int
    message: str
    """Sentence that names the image."""
    image: str
    """New value of `RolloutRecord.image`, or of `eval_image` if `evaluator` is true."""
    not_before: float
    """Time before which the rollout is not granted (Unix seconds), apart from the wait of all rollouts of its image."""
    ends_at: float
    """Unix seconds. From this time on the rollout does not wait for the image; it ends."""
    evaluator: bool = False


@dataclass(frozen=True, slots=True)
class ImageGivenUp:
    """The rollout has waited too long for its image."""

    at: float
    message: str


@dataclass(frozen=True, slots=True)
class Outdated:
    """The rollout's weights no longer match its request."""

    at: float
    fence: int
    why: Ending
    message: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    at: float
    why: Ending = CANCELLED
    message: str = "cancelled on request"


@dataclass(frozen=True, slots=True)
class LookedInto:
    """Somebody runs a command in the rollout's sandbox, or copies files. The rollout goes on."""

    at: float
    fence: int
    how: HistoryEvent
    who: str
    what: str


Event = (
    Granted
    | RunBegun
    | EndpointMoved
    | SnapshotTaken
    | TurnsSaved
    | LookedInto
    | RunStored
    | Finished
    | Lost
    | ImageMissing
    | ImageGivenUp
    | Outdated
    | Cancelled
)


@dataclass(frozen=True, slots=True)
class Requeued:
    """The rollout can be granted from `at` on (Unix seconds)."""

    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The record is terminal, so waiting callers must be notified."""


@dataclass(frozen=True, slots=True)
class StopHolder:
    """The holder must stop its work on the rollout."""

    holder: str
    fence: int


Effect = Requeued | Ended | StopHolder


def is_suspect(record: RolloutRecord) -> bool:
    """Whether the rollout needs a node agent that has no other lease and gets no other lease while the rollout runs."""
    return record.losses >= SUSPECT_LOSSES


def step(record: RolloutRecord, event: Event) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    """Return the new record, and the effects to carry out after the record is on disk. Raises Fenced for a void lease,
    and for a grant of a record that is not queued."""
    match event:
        case Cancelled():
            return _cancel(record, event)
        case Granted():
            return _grant(record, event), ()
        case RunBegun():
            return _begin_run(record, event), ()
        case EndpointMoved():
            return _move(record, event), ()
        case SnapshotTaken():
            return _take_snapshot(record, event), ()
        case TurnsSaved():
            return _save_turns(record, event), ()
        case LookedInto():
            return _look_into(record, event), ()
        case RunStored():
            return _store_run(record, event)
        case Outdated():
            return _outdate(record, event)
        case Lost():
            return _lose(record, event)
        case ImageMissing():
            return _wait_for_image(record, event)
        case ImageGivenUp():
            return _give_image_up(record, event)
        case Finished():
            return _finish(record, event)


def check_fence(record: RolloutRecord, fence: int) -> None:
    """Raise Fenced if the lease with this fence is void."""
    if record.status.terminal:
        raise Fenced(f"rollout {record.id} has ended {record.status}; drop its work")
    if not record.leased or record.fence != fence:
        raise Fenced(f"lease {fence} of rollout {record.id} is void (now {record.fence}); drop its work")


def _grant(record: RolloutRecord, event: Granted) -> RolloutRecord:
    if record.status is not Status.QUEUED:
        raise Fenced(f"rollout {record.id} is {record.status}, not queued")
    samples_first = record.stage is not Stage.EVAL and not record.saved_turns
    version = event.weights_version if samples_first else record.weights_version
    choice = event.choice
    history = with_entry(
        record,
        event.at,
        HistoryEvent.LEASED,
        reason=choice.node,
        node=event.node,
        allocation=event.allocation,
        free=choice.free or None,
        able=choice.able or None,
        endpoints={role: [id, choice.endpoints.get(role, "")] for role, id in event.endpoints.items()},
        weights_version=version,
    )
    return replace(
        record,
        status=Status.RUNNING,
        holder=event.holder,
        node=event.node,
        fence=record.fence + 1,
        endpoints=dict(event.endpoints),
        weights_version=version,
        queued_seconds=record.queued_seconds + max(0.0, event.at - record.queued_at),
        history=history,
    )


def _begin_run(record: RolloutRecord, event: RunBegun) -> RolloutRecord:
    check_fence(record, event.fence)
    if record.stage is not Stage.INIT:
        return record
    return replace(record, stage=Stage.RUN, history=with_entry(record, event.at, HistoryEvent.STAGE_BEGUN, Stage.RUN))


def _move(record: RolloutRecord, event: EndpointMoved) -> RolloutRecord:
    check_fence(record, event.fence)
    history = with_entry(
        record,
        event.at,
        HistoryEvent.ENDPOINT_MOVED,
        reason=event.reason,
        message=event.message,
        role=event.role,
        previous=record.endpoints.get(event.role),
        endpoint=event.endpoint,
    )
    return replace(record, endpoints={**record.endpoints, event.role: event.endpoint}, history=history)


def _take_snapshot(record: RolloutRecord, event: SnapshotTaken) -> RolloutRecord:
    """Return the record, which does not change. Raises Fenced if the lease is void or RUN is stored: the snapshots of a
    stored run are complete."""
    check_fence(record, event.fence)
    if record.stage is Stage.EVAL:
        raise Fenced(f"rollout {record.id} is at EVAL, and its snapshots are complete; drop this one")
    return record


def _save_turns(record: RolloutRecord, event: TurnsSaved) -> RolloutRecord:
    """Raises Fenced if the lease is void or RUN is stored."""
    check_fence(record, event.fence)
    if record.stage is Stage.EVAL:
        raise Fenced(f"rollout {record.id} is at EVAL, and has all its turns; drop these")
    record = replace(record, saved_turns=event.turns)
    if (resumed := event.resumed) is not None:
        version = record.weights_version if resumed.turn else event.weights_version or record.weights_version
        record = replace(record, weights_version=version)
    words = {HistoryEvent.RESUMED: resumed.sentence if resumed else "", HistoryEvent.SAVING_STOPPED: event.stopped}
    for word, message in words.items():
        if message and not lease_says(record, word, message):  # else the upload is repeated
            record = replace(record, history=with_entry(record, event.at, word, message=message))
    return record


def _look_into(record: RolloutRecord, event: LookedInto) -> RolloutRecord:
    check_fence(record, event.fence)
    return replace(record, history=with_entry(record, event.at, event.how, reason=event.who, message=event.what))


def _cancel(record: RolloutRecord, event: Cancelled) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    if record.status.terminal:
        return record, ()
    error = event.why.error(record.stage, event.message)
    stop = (StopHolder(record.holder, record.fence),) if record.holder else ()
    return _end(record, event.why.status, None, error, {}, event.at), (*stop, Ended())


def _store_run(record: RolloutRecord, event: RunStored) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    """Record the end of RUN. If the group must have one weights version, and a token was sampled from another
    version than the granted one, the rollout counts as outdated instead."""
    check_fence(record, event.fence)
    others = set(event.versions) - {record.weights_version}
    if record.weights is not None and record.weights.same and others:
        message = (
            f"it was sampled from {', '.join(sorted(event.versions))}, but its group from {record.weights_version}"
        )
        return _outdate(record, Outdated(event.at, event.fence, WEIGHTS_MIXED, message))
    seconds = _stage_seconds(event.seconds)
    history = with_entry(record, event.at, HistoryEvent.STAGE_BEGUN, Stage.EVAL, seconds=seconds)
    return replace(
        record,
        stage=Stage.EVAL,
        result=event.result,
        artifact=event.artifact,
        sampled_by=event.versions,
        losses=0,
        saved_turns=0,
        history=history,
    ), ()


def _outdate(record: RolloutRecord, event: Outdated) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    """Drop all tokens. A queued record has some if it has saved turns."""
    if not (record.status is Status.QUEUED and record.saved_turns and record.fence == event.fence):
        check_fence(record, event.fence)
    if record.stage is Stage.EVAL:
        return record, ()  # all its tokens are already sampled
    stop = (StopHolder(record.holder, record.fence),) if record.holder is not None else ()
    error = event.why.error(record.stage, event.message)
    record = replace(record, outdated=record.outdated + 1, saved_turns=0, error=error)
    if record.outdated > MAX_OUTDATED:
        words = f"it started {record.outdated} times, and each time its weights became too old; the last time: {event.message}"
        return _end_as(event.why, record, words, event.at), (*stop, Ended())
    history = with_entry(record, event.at, HistoryEvent.OUTDATED, reason=event.why.reason, message=event.message)
    queued, effects = _requeue(record, event.at, event.at, history)
    return queued, (*stop, *effects)


def _lose(record: RolloutRecord, event: Lost) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    check_fence(record, event.fence)
    counts = not (event.handed_back or event.blameless)
    losses = 0 if event.handed_back and _outlived(record) else record.losses + counts
    if counts and losses >= MAX_LOSSES:
        alone = losses - SUSPECT_LOSSES
        message = (
            f"its lease was lost {losses} times in a row, the last {alone} on a node agent without other work; "
            f"the last time: {event.reason}"
        )
        return _end_as(LOST_TOO_OFTEN, replace(record, losses=losses), message, event.at), (Ended(),)
    word = HistoryEvent.HANDED_BACK if event.handed_back else HistoryEvent.LEASE_LOST
    saved = record.saved_turns if losses < FRESH_LOSSES or not counts else 0
    history = with_entry(record, event.at, word, reason=event.reason, **_left(record, event.reason, saved))
    lost = record.lost + (word is HistoryEvent.LEASE_LOST)
    return _requeue(replace(record, losses=losses, lost=lost, saved_turns=saved), event.at, event.at, history)


def _outlived(record: RolloutRecord) -> bool:
    """Whether the holder was still there after a turn at which other node agents were lost."""
    return record.losses > 0 and record.saved_turns > most_turns_lost(record)


def _wait_for_image(record: RolloutRecord, event: ImageMissing) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    """Queue the rollout again. The attempt does not count: it begins again with the same number."""
    check_fence(record, event.fence)
    if event.at >= event.ends_at:
        return _end_without_image(record, event.message, event.at)
    history = with_entry(record, event.at, HistoryEvent.IMAGE_MISSING, reason=IMAGE_REASON, message=event.message)
    if record.stage is Stage.INIT:
        record = replace(record, endpoints={})  # no model server has seen its prompt
    queued, effects = _requeue(record, event.at, event.not_before, history)
    if event.evaluator:
        return replace(queued, attempt=record.attempt, eval_image=event.image), effects
    return replace(queued, attempt=record.attempt, image=event.image), effects


def _give_image_up(record: RolloutRecord, event: ImageGivenUp) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    if record.status is not Status.QUEUED:
        return record, ()
    return _end_without_image(record, event.message, event.at)


def _end_without_image(record: RolloutRecord, message: str, now: float) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    return _end_as(IMAGE_UNAVAILABLE, record, message, now), (Ended(),)


def _finish(record: RolloutRecord, event: Finished) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    check_fence(record, event.fence)
    if event.status is Status.INFRA_FAILED:
        faults = record.faults + 1
        saved = record.saved_turns if _goes_on(event, faults) else 0
        record = replace(record, faults=faults, saved_turns=saved, error=event.error)
        if faults < event.max_attempts:
            retry_at = event.at + backoff(record.id, record.faults)
            history = with_entry(
                record,
                event.at,
                HistoryEvent.FAULT,
                **_error_texts(event.error),
                node=record.node,
                turns=saved or None,
                seconds=_stage_seconds(event.summary),
                retry_at=round(retry_at, 3),
            )
            # The next attempt does not prefer the present endpoints, because they may be part of the cause.
            return _requeue(replace(record, endpoints={}, lost=record.lost + 1), event.at, retry_at, history)
    status, error = event.status, event.error
    if status.scored and (refused := _why_not_scored(record, event)) is not None:
        ending, why = refused
        status, error = ending.status, ending.error(record.stage, why)
    reward = event.reward if status.scored else None
    return _end(_with_result(record, event), status, reward, error, event.summary, event.at), (Ended(),)


def _goes_on(event: Finished, faults: int) -> bool:
    """Whether the next attempt of a rollout with a fault goes on after its saved turns: its sandbox was lost, and this is not
    the last attempt. They, or a call that the agent makes again after them, may be the cause."""
    return event.error is not None and event.error.reason in LOST_SANDBOX and faults < event.max_attempts - 1


def _left(record: RolloutRecord, reason: str, saved: int) -> dict[str, Any]:
    """Return the fields of a history entry about a lease that ended in INIT or RUN without a result."""
    if record.stage is Stage.EVAL:
        return {}
    kept = f"{saved} turn{'' if saved == 1 else 's'} kept" if saved else "no turn kept, so it begins again"
    message = f"it leaves node {record.node}, as {LOSSES.get(reason, reason)}; {kept}"
    return {"node": record.node, "turns": saved or None, "message": message}


def _with_result(record: RolloutRecord, event: Finished) -> RolloutRecord:
    if event.result is None:
        return record
    return replace(record, result=event.result, sampled_by=event.versions)


def _why_not_scored(record: RolloutRecord, event: Finished) -> tuple[Ending, str] | None:
    """Return how a scored result ends that cannot be used for training, and why; None if it can.

    A result without sampled tokens, or with a reward that is not finite, would spoil a training batch. No trainer gets the
    result of a check.
    """
    ended = f"it ended {event.status}"
    if record.mode != CHECK and (event.sampled == 0 or _with_result(record, event).result is None):
        return NOTHING_SAMPLED, f"{ended} without a sampled token"
    if event.reward is None or not math.isfinite(event.reward):
        return NO_FINITE_REWARD, f"{ended}, but its reward is not a finite number"
    return None


def backoff(id: str, faults: int) -> float:
    """Seconds to wait after a fault. The delay doubles with each fault, up to a limit. A hash shortens it by up to half."""
    full = min(BACKOFF_CAP_SECONDS, BACKOFF_SECONDS * 2.0 ** (faults - 1))
    return full * (0.5 + zlib.crc32(f"{id}/{faults}".encode()) / 2**33)


def _requeue(
    record: RolloutRecord, now: float, not_before: float, history: str
) -> tuple[RolloutRecord, tuple[Effect, ...]]:
    """Queue the record. Without saved turns, and before EVAL, all is sampled again, in a new attempt."""
    evaluated = record.stage is Stage.EVAL
    again = not evaluated and not record.saved_turns
    queued = replace(
        record,
        status=Status.QUEUED,
        stage=Stage.EVAL if evaluated else Stage.INIT,
        holder=None,
        node=None,
        weights_version=None if again else record.weights_version,
        attempt=record.attempt + (1 if again else 0),
        queued_at=now,
        not_before=not_before,
        history=history,
    )
    return queued, (Requeued(not_before),)


def _end_as(ending: Ending, record: RolloutRecord, message: str, now: float) -> RolloutRecord:
    return _end(record, ending.status, None, ending.error(record.stage, message), {}, now)


def _end(
    record: RolloutRecord,
    status: Status,
    reward: float | None,
    error: RolloutError | None,
    summary: Mapping[str, Any],
    now: float,
) -> RolloutRecord:
    return replace(
        record,
        status=status,
        holder=None,
        saved_turns=0,
        reward=reward,
        error=error,
        summary=dict(summary),
        finished_at=now,
        history=with_entry(
            record,
            now,
            HistoryEvent.ENDED,
            **_error_texts(error),
            status=status.value,
            reward=reward,
            seconds=_stage_seconds(summary),
        ),
    )


def _stage_seconds(measured: Mapping[str, Any]) -> dict[str, float]:
    found = ((word, measured.get(word)) for word in ("init", "run", "eval"))
    return {word: round(s, 3) for word, s in found if isinstance(s, int | float) and math.isfinite(s)}


def _error_texts(error: RolloutError | None) -> dict[str, Any]:
    return {"reason": error.reason, "message": error.message} if error is not None else {}
