"""`plan`: what to do about a pool, and about an allocation, from what is declared and what is seen. Pure.

Nothing here acts, waits, or reads a clock. The same view gives the same plan; a plan carried out in part gives a view from
which the rest is planned again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rollyard.core.clock import time_of_day
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.slurm_reasons import is_limit, is_transient, reason_with_text, reason_word
from rollyard.reconcilers.failure_backoff import EndCounts, count_ends
from rollyard.reconcilers.renewal import RenewalTime, can_take_work, learn_startup, renewal_times, startup_seconds
from rollyard.slurm.base import Job, JobState, Snapshot

EMPTY_GRACE_SECONDS = 3.0
"""After the order to drain; times in conditions are cut to whole seconds."""
KEPT_ENDED = 3
"""Ended allocations kept for people to look at."""
STAND_IN_SECONDS = 60.0
"""One that served and has been suspended or silent for so long is made up for, within the surge, until it is back."""
STUCK_SECONDS = 30.0
"""A successor for which Slurm names no start time after so long is not counted on."""
SUBMIT_MARGIN_SECONDS = 2.0
"""A snapshot begun so long after a submit was decided shows the job, if there is one."""
MIN_MISSES = 2
COMPLETING, SUSPENDED = JobState.COMPLETING.value, JobState.SUSPENDED.value


def template_hash(pool: Pool) -> str:
    """Of everything an allocation is made from; another hash means out of date.

    Without what is left at its default: a release that adds a field replaces nobody's allocations.
    """
    if isinstance(pool, InferencePool):
        parts = [pool.spec.allocation, pool.spec.model, pool.spec.engine]
    else:
        parts = [pool.spec.allocation, pool.spec.sandbox, pool.spec.stages]
    text = json.dumps([part.model_dump(mode="json", exclude_defaults=True) for part in parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# pools


@dataclass(frozen=True, slots=True)
class Member:
    """An allocation of the pool as a plan sees it."""

    allocation: Allocation
    ready: bool
    load: int = 0
    """Rollouts in hand, or live sessions."""
    silent: bool = False
    """It was heard once, and is not any more."""

    @property
    def name(self) -> str:
        return self.allocation.metadata.name

    @property
    def index(self) -> int:
        return self.allocation.spec.index

    @property
    def deleting(self) -> bool:
        return self.allocation.metadata.deletion_timestamp is not None

    @property
    def live(self) -> bool:
        """Its job waits or runs; one that Slurm only cleans up after can do nothing more."""
        status = self.allocation.status
        return not (status.is_ended or status.job_state == COMPLETING or self.deleting)

    @property
    def active(self) -> bool:
        """Counts towards the size of the pool."""
        return self.live and not self.allocation.spec.drain

    @property
    def started(self) -> bool:
        return self.allocation.status.job_state not in (None, "PENDING")

    @property
    def suspended(self) -> bool:
        return self.allocation.status.job_state == SUSPENDED

    @property
    def serves(self) -> bool:
        """Ready, running, and not about to go."""
        return self.active and self.ready and not self.suspended

    def missing(self, now: float) -> bool:
        """Whether it served once, and has been suspended or silent for so long that another stands in for it."""
        status = self.allocation.status
        known = get_condition(status.conditions, "Ready")
        if status.ready_at is None or known is None or known.status == "True" or not (self.suspended or self.silent):
            return False
        return now - known.last_transition_time.timestamp() >= STAND_IN_SECONDS

    @property
    def ends(self) -> float | None:
        """When its walltime is over (Unix seconds), as far as that is known."""
        status = self.allocation.status
        return status.end_time.timestamp() if status.end_time is not None and self.started and self.live else None


@dataclass(frozen=True, slots=True)
class Successor:
    """An allocation to make beside the one that it replaces."""

    index: int
    of: str
    after_job: str | None = None
    """Job that must have ended before it starts."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    create: tuple[int, ...] = ()
    """Indices of allocations to make."""
    successors: tuple[Successor, ...] = ()
    drain: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    next_index: int = 0
    ends: EndCounts = field(default_factory=EndCounts)
    startup: float | None = None
    """Seconds from submit to ready, as measured."""
    startup_at: float | None = None
    again_after: float | None = None
    """Seconds until the back-off is over."""
    removable: bool = False
    """Deleted, and nothing of it is left: the finalizer may go."""


def plan_pool(pool: Pool, members: Sequence[Member], desired: int, now: float, *, slurm_known: bool) -> PoolPlan:
    """What to change about a pool's allocations. While Slurm cannot be read, nothing."""
    ends = pool_ends(pool, members, now)
    newest = max((m.index for m in members), default=-1) + 1
    startup, startup_at = _startup(pool, members)
    plan = PoolPlan(
        next_index=max(pool.status.next_index, newest),
        ends=ends,
        startup=startup,
        startup_at=startup_at,
    )
    if pool.metadata.deletion_timestamp is not None:
        return _tear_down(plan, members)
    if not slurm_known:
        return plan
    view = _PoolMembers.of(pool, members, now)
    wait = max(0.0, ends.next_at - now)
    missing = 0 if wait else max(0, min(desired - len(view.counted), _count_creatable(view, members, desired)))
    create = tuple(range(plan.next_index, plan.next_index + missing))
    renew = () if wait or desired == 0 else _due_successors(view, desired, plan.next_index + missing)
    going = [*_surplus(view, desired), *_replaced(view), *_outdated_before_use(view)]
    drain = {m.name for m in going if m.started and (m.ready or m.load > 0)}
    emptied, empty_in = _drained(members, now)
    return replace(
        plan,
        create=create,
        successors=renew,
        drain=tuple(sorted(drain)),
        delete=tuple(sorted({m.name for m in going if m.name not in drain} | emptied | _expired_history(members))),
        next_index=plan.next_index + len(create) + len(renew),
        again_after=min((seconds for seconds in (wait, empty_in) if seconds), default=None),
    )


@dataclass(frozen=True, slots=True)
class _PoolMembers:
    """The active members of a pool, sorted out."""

    pool: Pool
    now: float
    hash: str
    counted: list[Member]
    """Those that make up the size of the pool."""
    missing: list[Member]
    """Suspended or silent for long: they count again when they are back."""
    pairs: list[tuple[Member, Member]]
    """(old, successor): the old one counts no more, though it serves until the successor is ready."""

    @classmethod
    def of(cls, pool: Pool, members: Sequence[Member], now: float) -> _PoolMembers:
        active = {m.name: m for m in members if m.active}
        of = {m.allocation.spec.successor_of: m for m in active.values()}
        pairs = [(m, of[m.name]) for m in active.values() if m.name in of]
        superseded = {old.name for old, _ in pairs}
        size = [m for m in active.values() if m.name not in superseded]
        missing = [m for m in size if m.missing(now)]
        return cls(pool, now, template_hash(pool), [m for m in size if m not in missing], missing, pairs)

    def outdated(self, member: Member) -> bool:
        return member.allocation.spec.template_hash != self.hash


def _due_successors(view: _PoolMembers, desired: int, next_index: int) -> tuple[Successor, ...]:
    """Successors to submit now: of what is out of date, and of what ends soon, the first to end first."""
    free = view.pool.spec.renewal.max_surge - len(view.pairs)
    if free <= 0 or len(view.counted) > desired:
        return ()
    held = view.pool.spec.allocation.within is not None  # all steps of it end with it: there is nowhere to go
    counted = {m.name: m for m in view.counted}
    due = [name for name, turn in _renewal_times(view).items() if turn.submit_at <= view.now]
    soon = [] if held else [counted[name] for name in due if name in counted]
    old = [m for m in view.counted if m.started and view.outdated(m) and m not in soon]
    replace_only = view.pool.spec.renewal.strategy == "Replace"
    return tuple(
        Successor(next_index + i, m.name, m.allocation.status.job_id if replace_only else None)
        for i, m in enumerate([*soon, *sorted(old, key=lambda m: -m.index)][:free])
    )


def _renewal_times(view: _PoolMembers) -> dict[str, RenewalTime]:
    """Of those whose end is known, the first to end first. Who has a successor already still holds a place of the surge."""
    waiting = [old for old, _ in view.pairs if not view.outdated(old)]
    ends = sorted((m.ends, m.name) for m in [*view.counted, *waiting] if m.ends is not None)
    return dict(zip((name for _, name in ends), renewal_times(view.pool, [end for end, _ in ends]), strict=True))


def _surplus(view: _PoolMembers, desired: int) -> list[Member]:
    """Victims: out of date, then not started, then idle, then the least loaded, then the first whose walltime ends.

    What is missing goes with the first of them: there are enough without it.
    """

    def order(m: Member) -> tuple[bool, bool, int, float, int]:
        return not view.outdated(m), m.started, m.load, m.ends or float("inf"), -m.index

    surplus = max(0, len(view.counted) - desired)
    return [*sorted(view.counted, key=order)[:surplus], *(view.missing if surplus or desired == 0 else [])]


def _replaced(view: _PoolMembers) -> list[Member]:
    """Those that may go: their turn is over, or they are of no more use and their successor waits for nothing but their end."""
    found = _renewal_times(view)

    def over(old: Member, successor: Member) -> bool:
        if _useless(view, old) and (successor.ready or _blocks_successor(successor)):
            return True
        turn = None if view.outdated(old) or view.outdated(successor) else found.get(old.name)
        return successor.ready and (turn is None or turn.retire_at <= view.now)

    return [old for old, successor in view.pairs if over(old, successor)]


def _blocks_successor(successor: Member) -> bool:
    """Whether it is submitted and cannot start beside the one that it replaces."""
    spec, status = successor.allocation.spec, successor.allocation.status
    waits = status.job_id is not None and not successor.started
    return waits and (spec.after_job is not None or is_limit(status.reason))


def _useless(view: _PoolMembers, old: Member) -> bool:
    """Whether it has nothing in hand and can take nothing more; a model server is used to the last."""
    if isinstance(view.pool, RolloutPool) and old.load > 0:
        return False
    return view.outdated(old) or (old.ends is not None and not can_take_work(view.pool, old.ends, view.now))


def blocked(pool: Pool, members: Sequence[Member], now: float, failed: str = "") -> tuple[str, str] | None:
    """(reason, message) where a successor cannot be ready before what it replaces has to end.

    `failed`: how successors have failed so far, where none of them has become ready.
    """
    if not any(m.active and m.ends is not None for m in members):
        return None
    view = _PoolMembers.of(pool, members, now)
    for old, successor in view.pairs:
        found = _late_successor(pool, old, successor, now)
        if found is not None:
            reason, why, gap = found
            return reason, _gap(old, f"its successor {successor.name} waits: {why}", gap)
    if not failed:
        return None
    due = {name for name, turn in _renewal_times(view).items() if turn.submit_at <= now}
    for old in (m for m in view.counted if m.name in due):
        return "SuccessorFails", _gap(old, f"its successor {failed}", startup_seconds(pool))
    return None


def _late_successor(pool: Pool, old: Member, successor: Member, now: float) -> tuple[str, str, float] | None:
    """(reason, why it waits, seconds of the gap) of a successor that does not start in time."""
    status = successor.allocation.status
    if successor.ready or successor.started or old.ends is None:
        return None
    after, limit = successor.allocation.spec.after_job is not None, is_limit(status.reason)
    expected = status.start_time.timestamp() if status.start_time is not None else None
    asked = status.intended_at.timestamp() if status.intended_at is not None else now
    # With no start named: nobody may expect one, Slurm has had time to name one, or no time is left to start in.
    late = now - asked > STUCK_SECONDS or old.ends - now < startup_seconds(pool)
    stuck = expected is None and (late or not is_transient(status.reason))
    if not (after or limit or stuck or (expected is not None and expected >= old.ends)):
        return None
    gap = max(0.0, (expected or old.ends) - old.ends) + startup_seconds(pool)
    if after:
        return "StrategyReplace", "spec.renewal.strategy is Replace", gap
    why = "Slurm has not answered its submit" if status.job_id is None else reason_with_text(status.reason)
    return (reason_word(status.reason) if limit or (stuck and status.reason) else "QueueTooLong"), why, gap


def _gap(old: Member, why: str, gap: float) -> str:
    assert old.ends is not None
    return f"allocation {old.name} ends at {time_of_day(old.ends)} and {why}; expected gap: about {gap:.0f} s"


def _outdated_before_use(view: _PoolMembers) -> list[Member]:
    """Out of date before they were of any use: nothing is lost when they make room.

    One that has started may yet get ready, unless what it was to replace still serves: a bad template would stay for as
    long as its jobs hang.
    """
    hung = {s.name for _, s in view.pairs if not s.ready and s.load == 0}
    return [m for m in view.counted if view.outdated(m) and (not m.started or m.name in hung)]


def _count_creatable(view: _PoolMembers, members: Sequence[Member], desired: int) -> int:
    """New ones that the pool's size allows beside all that live, those that drain included."""
    spec = view.pool.spec
    most = spec.autoscaling.max_replicas if spec.autoscaling is not None else desired
    return most + spec.renewal.max_surge - sum(m.live for m in members)


def _drained(members: Sequence[Member], now: float) -> tuple[set[str], float]:
    """Those that drain, have nothing in hand and live on, and seconds until there are more of them.

    What is ready drains even where it looks idle: a lease may be on its way to it. Soon after it was told, none is.
    """
    empty = [m for m in members if m.allocation.spec.drain and m.live and m.load == 0]
    waits = {m.name: at + EMPTY_GRACE_SECONDS - now for m in empty if (at := _draining_since(m)) is not None}
    return {name for name, wait in waits.items() if wait <= 0}, min((w for w in waits.values() if w > 0), default=0.0)


def _draining_since(member: Member) -> float | None:
    condition = get_condition(member.allocation.status.conditions, "Draining")
    return (
        condition.last_transition_time.timestamp() if condition is not None and member.allocation.spec.drain else None
    )


def _expired_history(members: Sequence[Member]) -> set[str]:
    """Ended ones that nobody needs to look at any more."""
    finished = sorted((m for m in members if m.allocation.status.is_ended and not m.deleting), key=lambda m: -m.index)
    drained = [m.name for m in finished if m.allocation.spec.drain]
    return {*drained, *[m.name for m in finished if not m.allocation.spec.drain][KEPT_ENDED:]}


def _tear_down(plan: PoolPlan, members: Sequence[Member]) -> PoolPlan:
    """Drain what is busy, delete the rest; removable when no allocation is left."""
    busy = [m.name for m in members if m.live and m.started and m.load > 0]
    undrained = tuple(m.name for m in members if m.name in busy and not m.allocation.spec.drain)
    delete = tuple(m.name for m in members if m.name not in busy and not m.deleting)
    return PoolPlan(drain=undrained, delete=delete, next_index=plan.next_index, ends=plan.ends, removable=not members)


def _startup(pool: Pool, members: Sequence[Member]) -> tuple[float | None, float | None]:
    known, until = pool.status.startup_seconds, pool.status.startup_measured_at
    seen = [
        (ready.timestamp(), (ready - intended).total_seconds())
        for m in members
        if (ready := m.allocation.status.ready_at)
        and (intended := m.allocation.status.intended_at)
        and m.allocation.spec.after_job is None  # its wait was asked for
    ]
    return learn_startup(known, until.timestamp() if until else None, seen)


def pool_ends(pool: Pool, members: Sequence[Member], now: float) -> EndCounts:
    active = [m for m in members if m.active]
    return count_ends(
        pool.status,
        template_hash(pool),
        [m.allocation for m in members],
        now,
        serves=any(m.serves for m in active),
        all_ready=bool(active) and all(m.ready for m in active),
    )


# allocations


@dataclass(frozen=True, slots=True)
class AllocationPlan:
    adopt: Job | None = None
    """The job that it is found again by, or the one that is recorded, as last seen."""
    submit: bool = False
    """Write the intent, then submit."""
    cancel: tuple[str, ...] = ()
    gone: bool = False
    """Its job is in no complete snapshot any more."""
    remove: bool = False
    """Nothing of it is left: its finalizer may go."""
    wait: bool = field(default=False)
    """Undecided until a later snapshot."""


def plan_allocation(allocation: Allocation, owner: str, snapshot: Snapshot | None, missed: int) -> AllocationPlan:
    """What to do about one allocation; `missed` counts complete snapshots in a row without its job."""
    status, deleting = allocation.status, allocation.metadata.deletion_timestamp is not None
    if status.is_ended:
        # A copy that turned up after the end was concluded: nothing will ever speak for it.
        left = tuple(c.id for c in snapshot.by_owner(owner) if not c.state.ended) if snapshot else ()
        return AllocationPlan(remove=deleting and not left, cancel=left)
    if status.intents == 0 and deleting:
        return AllocationPlan(remove=True)
    if snapshot is None:
        return AllocationPlan(wait=True)
    if status.intents == 0:
        return AllocationPlan(submit=True)
    copies = sorted(snapshot.by_owner(owner), key=lambda j: (j.state.ended, _job_number(j.id)))
    job = snapshot.jobs.get(status.job_id) if status.job_id else next(iter(copies), None)
    if job is None:
        return _without_job(allocation, snapshot, missed, deleting)
    strays = tuple(c.id for c in copies if c.id != job.id and not c.state.ended)
    over = job.state.ended or job.state is JobState.COMPLETING
    if not over and (deleting or _is_second_run(allocation, job)):
        return AllocationPlan(adopt=job, cancel=(job.id, *strays))
    return AllocationPlan(adopt=job, cancel=strays)


def _is_second_run(allocation: Allocation, job: Job) -> bool:
    """It would run once more, though another run of it was bound: that one's work has been given to others."""
    binding = allocation.status.binding
    return binding is not None and binding.job_id == job.id and job.restart_count > binding.restart_count


def _job_number(id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in id.split("_") if part.isdecimal())


def _without_job(allocation: Allocation, snapshot: Snapshot, missed: int, deleting: bool) -> AllocationPlan:
    """A complete snapshot, and our job is not in it. One may be wrong: two in a row are believed."""
    status = allocation.status
    assert status.intended_at is not None
    early = status.job_id is None and snapshot.taken_at < status.intended_at.timestamp() + SUBMIT_MARGIN_SECONDS
    if early or missed < MIN_MISSES:
        return AllocationPlan(wait=True)
    if status.job_id is not None:
        return AllocationPlan(gone=True)
    return AllocationPlan(remove=True) if deleting else AllocationPlan(submit=True)
