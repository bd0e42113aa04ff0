"""`advance(batch, event) -> (batch, effects)` and `advance_group(batch, group, event) -> (batch, group, effects)`: every
change of a batch and of its groups, as pure functions.

                         RolloutEnded, until the filter has a verdict
    GroupDrawn                 +-----------------------+
    GroupAdopted ---> Open ----+--> Informative -------+--> all rollouts ended: Delivered 1, 2, 3 ...
                       |       |
                       |       +--> Uninformative: its running rollouts are cancelled, another task is drawn
                       |       +--> Faulty: too few rewards; its task is put back, another one is drawn
                       |
                       +--> the batch ends first: carried to the next batch of the series (or Cancelled)

    Running -----------------> Completed   the target is delivered; or a stream is drained and, if required, acknowledged
      |  ^                     Exhausted   the source ended before the target
      |  +-- Ticked, Ack.      Expired     deadline_seconds have passed
      +----------------------> Cancelled   on request, or because the pool is gone

After RolloutEnded, Ticked and Acknowledged, a running batch requests missing groups by DrawTasks: see `wanted`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from rollyard.core.replaced_fields import replace
from rollyard.kinds.batch import BatchRequest, BatchStatus
from rollyard.server.batches.draw import may_return
from rollyard.server.batches.judge import Verdict, judge
from rollyard.store.batch_records import BatchRecord, EndedRollout, GroupRecord, GroupState, SeriesRecord

FORGET = 0.99
"""Factor by which each verdict reduces the weight of earlier verdicts, so that the informative rate follows the
changing policy."""
QUEUE_AHEAD = 4
"""Greatest number of unfinished rollouts of a batch, as a multiple of the batch's slots (see `Ticked`). Without this
limit, a batch with an informative rate near 0 would draw a whole dataset."""
MIN_QUEUE = 1024
"""The limit on unfinished rollouts is never below this number. With 0 slots it would otherwise be 0, but a pool without
workers grows only if rollouts are queued."""
MANY_FAULTY = 5
"""Number of faulty groups in a row after which a batch reports them as the reason why it makes no progress."""
UNBOUNDED_SHARE = 2
"""Limit of a stream without `step_groups` that waits for acknowledgements. The stream's groups in flight and its
unacknowledged groups together are at most this many times the groups that fill the slots."""


@dataclass(frozen=True, slots=True)
class GroupDrawn:
    """The group's rollouts were inserted."""


@dataclass(frozen=True, slots=True)
class GroupAdopted:
    """A group that an earlier batch of the series left unfinished now belongs to this batch."""


@dataclass(frozen=True, slots=True)
class RolloutEnded:
    """A rollout of the group has ended."""

    at: float
    rollout: EndedRollout


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed. `slots`: number of rollouts that the pool can work on for this batch."""

    at: float
    slots: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The trainer has used all groups up to delivery `upto`."""

    at: float
    upto: int


@dataclass(frozen=True, slots=True)
class SourceDrained:
    """The source has no more tasks for this batch."""

    at: float


@dataclass(frozen=True, slots=True)
class BatchCancelled:
    at: float
    keep: bool
    """Whether the batch's live groups (open or informative) may be carried over. The groups are carried over only if
    the request permits this too."""


GroupEvent = GroupDrawn | GroupAdopted | RolloutEnded
BatchEvent = Ticked | Acknowledged | SourceDrained | BatchCancelled


@dataclass(frozen=True, slots=True)
class DrawTasks:
    """Draw this number of groups now."""

    groups: int


@dataclass(frozen=True, slots=True)
class CancelRest:
    """Cancel the group's unfinished rollouts, because the group cannot become informative."""


@dataclass(frozen=True, slots=True)
class GroupSettled:
    """Record the group's final verdict in the task's history, and in the rates and the lengths of the series.

    A faulty group is not recorded there; its task is put back if `may_return` allows this.
    """

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class GroupDelivered:
    """The group has got its delivery number."""


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """The batch has ended. If `keep` is true, carry the live groups over; otherwise cancel the live groups."""

    keep: bool


BatchEffect = DrawTasks | BatchEnded
GroupEffect = CancelRest | GroupSettled | GroupDelivered
R = TypeVar("R", BatchRecord, SeriesRecord)
Advanced = tuple[BatchRecord, tuple[BatchEffect, ...]]
Judged = tuple[BatchRecord, GroupRecord, tuple[GroupEffect, ...]]


def advance(request: BatchRequest, batch: BatchRecord, event: BatchEvent) -> Advanced:
    """Return the batch after the event, and the effects to carry out in the same transaction."""
    match event:
        case Ticked(at=at):
            batch = batch if batch.slots == event.slots else replace(batch, slots=event.slots)
            if request.deadline_seconds is not None and at >= batch.created_at + request.deadline_seconds:
                return _end(request, batch, BatchStatus.EXPIRED, at)
            return _after(request, batch, at)
        case Acknowledged(at=at):
            return _after(request, replace(batch, acknowledged=max(batch.acknowledged, event.upto)), at)
        case SourceDrained(at=at):
            return _end_if_done(request, replace(batch, drained=True), at)
        case BatchCancelled(at=at):
            return _end(request, batch, BatchStatus.CANCELLED, at, keep=event.keep)


def advance_group(
    request: BatchRequest, batch: BatchRecord, group: GroupRecord, event: GroupEvent
) -> tuple[BatchRecord, GroupRecord, tuple[GroupEffect | BatchEffect, ...]]:
    """Return the batch and its group after the event, and the effects to carry out in the same transaction."""
    match event:
        case GroupDrawn():
            counted = replace(batch, open=batch.open + 1, drawn=batch.drawn + 1, unfinished=batch.unfinished + group.n)
            return counted, group, ()
        case GroupAdopted():
            batch = replace(
                batch,
                open=batch.open + 1,
                carried_in=batch.carried_in + 1,
                unfinished=batch.unfinished + group.n - len(group.ended),
            )
            batch, group, judged = _judge_group(request, batch, replace(group, batch=batch.id, state=GroupState.OPEN))
            batch, effects = _end_if_done(request, batch, batch.created_at)
        case RolloutEnded(at=at):
            batch, group, judged = _end_rollout(request, batch, group, event.rollout)
            batch, effects = _after(request, batch, at)
    return batch, group, (*judged, *effects)


def _after(request: BatchRequest, batch: BatchRecord, at: float) -> Advanced:
    batch, done = _end_if_done(request, batch, at)
    more = wanted(request, batch)
    return batch, (*done, DrawTasks(more)) if more else done


def _end_rollout(request: BatchRequest, batch: BatchRecord, group: GroupRecord, rollout: EndedRollout) -> Judged:
    live = group.state.live
    group = take_end(group, rollout)
    if not live:  # a late rollout of a group that was given up
        return replace(batch, wasted_tokens=batch.wasted_tokens + rollout.tokens), group, ()
    return _judge_group(request, replace(batch, unfinished=batch.unfinished - 1), group)


def take_end(group: GroupRecord, rollout: EndedRollout) -> GroupRecord:
    """Return the group with this ended rollout added. If the group has the rollout already, nothing changes."""
    if any(r.sample == rollout.sample for r in group.ended):
        return group
    return replace(group, ended=(*group.ended, rollout))


def _judge_group(request: BatchRequest, batch: BatchRecord, group: GroupRecord) -> Judged:
    """Judge a live group. An informative group is delivered once all its rollouts have ended. An uninformative or faulty
    group is given up."""
    if group.state is GroupState.OPEN:
        verdict = judge(request.filter, request.min_usable, group.n, group.ended)
        if verdict is Verdict.OPEN:
            return batch, group, ()
        batch = replace(batch, open=batch.open - 1)
        if verdict is not Verdict.INFORMATIVE:
            return _give_up(batch, group, verdict)
        batch = replace(batch, informative=batch.informative + 1, faulty_in_a_row=0)
        group = replace(group, state=GroupState.INFORMATIVE)
    if not group.all_ended:
        return batch, group, ()
    return _deliver(request, batch, group)


def _give_up(batch: BatchRecord, group: GroupRecord, verdict: Verdict) -> Judged:
    batch = replace(
        _compare(batch, group),
        unfinished=batch.unfinished - (group.n - len(group.ended)),
        wasted_tokens=batch.wasted_tokens + group.tokens,
    )
    rest: tuple[GroupEffect, ...] = () if group.all_ended else (CancelRest(),)
    if verdict is Verdict.FAULTY:
        batch = replace(
            batch,
            faulty=batch.faulty + 1,
            faulty_in_a_row=batch.faulty_in_a_row + 1,
            drained=batch.drained and not may_return(group),
        )
        return batch, replace(group, state=GroupState.FAULTY), (GroupSettled(verdict), *rest)
    counts = {verdict.value: getattr(batch, verdict.value) + 1}
    settled = replace(_settle(batch, informative=False), **counts)
    return settled, replace(group, state=GroupState.UNINFORMATIVE), (GroupSettled(verdict), *rest)


def _deliver(request: BatchRequest, batch: BatchRecord, group: GroupRecord) -> Judged:
    number = batch.delivered + 1
    staleness = max(0, training_step(request, batch, number) - group.drawn_step)
    batch = replace(
        _compare(_settle(batch, informative=True), group),
        informative=batch.informative - 1,
        delivered=number,
        staleness=batch.staleness + staleness,
        whole_lengths=batch.whole_lengths.plus(group.ended),
        delivered_lengths=batch.delivered_lengths.plus(group.ended),
    )
    group = replace(group, state=GroupState.DELIVERED, delivery=number, staleness=staleness)
    return batch, group, (GroupSettled(Verdict.INFORMATIVE), GroupDelivered())


def training_step(request: BatchRequest, batch: BatchRecord, delivery: int) -> int:
    """Return the number, within the series, of the training step that uses this delivery. Without `step_groups` a batch
    is one step."""
    return batch.step + ((delivery - 1) // request.step_groups if request.step_groups else 0)


def _settle(batch: BatchRecord, *, informative: bool) -> BatchRecord:
    return replace(settle_rate(batch, informative=informative), faulty_in_a_row=0)


def _compare(batch: BatchRecord, group: GroupRecord) -> BatchRecord:
    """Count a group whose rewards can be compared."""
    rewards = [r.reward for r in group.ended if r.reward is not None]
    if len(rewards) < 2:
        return batch
    differing = batch.differing + (min(rewards) < max(rewards))
    return replace(batch, compared=batch.compared + 1, differing=differing)


def settle_rate(rates: R, *, informative: bool) -> R:
    """Return the observed rates of a batch or a series after one more verdict."""
    return replace(
        rates,
        settled=rates.settled * FORGET + 1,
        settled_informative=rates.settled_informative * FORGET + informative,
    )


def _end_if_done(request: BatchRequest, batch: BatchRecord, at: float) -> Advanced:
    if batch.status.terminal:
        return batch, ()
    if request.target is not None and batch.delivered >= request.target:
        return _end(request, batch, BatchStatus.COMPLETED, at)
    if batch.drained and batch.in_flight == 0:
        if request.target is not None:
            return _end(request, batch, BatchStatus.EXHAUSTED, at)
        if batch.acknowledged >= batch.delivered or not request.bounded_by_acknowledgement:
            return _end(request, batch, BatchStatus.COMPLETED, at)
    return batch, ()


def _end(request: BatchRequest, batch: BatchRecord, status: BatchStatus, at: float, *, keep: bool = True) -> Advanced:
    if batch.status.terminal:
        return batch, ()
    keep = keep and request.carry_over == "keep" and not request.own_series
    ended = replace(batch, status=status, ended_at=at, open=0, informative=0, unfinished=0)
    return ended, (BatchEnded(keep),)


def pass_rate(request: BatchRequest, batch: BatchRecord) -> float:
    """Return the expected share of groups that the filter lets pass: the mean of Beta(1 + passed, 1 + held back), where
    FORGET reduces the weight of earlier groups. Return 1 if the filter lets all groups pass."""
    if request.filter.lets_all_pass:
        return 1.0
    return (batch.settled_informative + 1) / (batch.settled + 2)


def only_tries(request: BatchRequest, batch: BatchRecord) -> bool:
    """Whether the batch runs one group at a time until a group has rewards. It does so after as many faulty groups in a row
    as fill its slots, if its tasks have no known end. Otherwise a judge that is down for a night would cost a night of
    sampling."""
    endless = request.tasks is None and request.epochs is None
    return endless and batch.faulty_in_a_row >= max(MANY_FAULTY, _groups_that_fill(request, batch))


def _groups_that_fill(request: BatchRequest, batch: BatchRecord) -> int:
    return max(1, math.ceil(batch.slots / request.n))


def wanted(request: BatchRequest, batch: BatchRecord) -> int:
    """Return the number of groups to draw now.

    With a target, draw as many groups as the target still needs at the observed informative rate. Draw them also
    without workers, so that an empty pool grows. If the series can have a later batch, draw at least enough groups to
    fill idle slots, also with `carry_over: cancel`: the groups that are whole first fill the target, so the batch ends
    sooner.

    A stream with `step_groups` draws as many groups as the next training step still needs, and more if slots are idle.
    Its limit is staleness: unacknowledged groups, and groups in flight that are expected to be informative, may fill at
    most `max_staleness` + 1 training steps. Other streams fill the slots.

    In all cases QUEUE_AHEAD, `only_tries` and the request's `in_flight` limit the number.
    """
    if batch.status.terminal or batch.drained:
        return 0
    rate = pass_rate(request, batch)
    expected = batch.delivered + batch.informative + batch.open * rate
    idle = max(0, math.ceil((batch.slots - batch.unfinished) / request.n))
    fill = _groups_that_fill(request, batch)
    if request.target is not None:
        more = max(0 if request.own_series else idle, _groups_for(request.target - expected, rate))
    elif request.step_groups is not None:
        steps = batch.acknowledged // request.step_groups
        one_step = (steps + 1) * request.step_groups - expected
        admitted = one_step + request.max_staleness * request.step_groups
        more = min(_groups_for(admitted, rate), max(idle, _groups_for(one_step, rate)))
    else:
        more = max(idle, fill - batch.in_flight)
        if request.bounded_by_acknowledgement:
            unused = batch.in_flight + batch.delivered - batch.acknowledged
            more = min(more, UNBOUNDED_SHARE * fill - unused)
    queue = max(MIN_QUEUE, QUEUE_AHEAD * batch.slots) - batch.unfinished
    more = min(more, max(idle, math.ceil(queue / request.n)))
    if only_tries(request, batch):
        more = min(more, 1 - batch.in_flight)
    if request.in_flight is not None:
        more = min(more, request.in_flight - batch.in_flight)
    return max(0, more)


def _groups_for(informative: float, rate: float) -> int:
    """Return how many groups to draw so that `informative` of them are expected to be informative."""
    return max(0, math.ceil(informative / rate - 1e-9))
