"""Plan for a pool, from its spec and the observed state of its allocations. Pure.

The functions change nothing and read no clock: the same input gives the same plan. If only a part of a plan was carried
out, the next plan contains the missing part. All rules are in one file, because their order is a part of the plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rollyard.core.clock import as_text
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import Reason, evolve, get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.failure_backoff import EndCounts, count_ends
from rollyard.reconcilers.node_avoidance import FAILURES_IN_A_ROW, BadNode, avoids_needlessly
from rollyard.reconcilers.renewal import RenewalTime, can_take_work, learn_startup, renewal_times, startup_seconds

EMPTY_GRACE_SECONDS = 3.0
"""Seconds from the order to drain until an empty allocation may end. The order's recorded time is rounded down to whole
seconds, so the real wait may be up to a second shorter."""
KEPT_ENDED = 3
"""Number of ended allocations that are kept for people to look at."""
STAND_IN_SECONDS = 60.0
"""If a member that served is suspended or silent for this many seconds, the pool replaces this member."""
MAX_NAMED = 5
"""Greatest number of allocations that a message names."""
STUCK_SECONDS = 30.0
"""Seconds after which a successor without a start time from Slurm counts as late."""


def template_hash(pool: Pool) -> str:
    """Hash of those parts of a pool's spec whose change replaces the pool's allocations. An allocation with another
    hash is out of date.

    Default values are left out, so that a release with a new field does not replace present allocations.
    """
    if isinstance(pool, InferencePool):
        # the callers of an engine read its calls, so a change of the parser concerns no engine
        parts = [pool.spec.allocation, evolve(pool.spec.model, tool_parser=None), pool.spec.engine]
    else:
        parts = [pool.spec.allocation, pool.spec.sandbox, pool.spec.stages]
    found: list[Any] = [part.model_dump(mode="json", exclude_defaults=True) for part in parts]
    if pool.spec.restarted_at is not None:
        found.append(pool.spec.restarted_at.isoformat())
    text = json.dumps(found, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Member:
    """An allocation of the pool, with the facts that a plan needs."""

    allocation: Allocation
    ready: bool
    load: int = 0
    """Number of leases of a node agent. For a model server: number of live sessions or of running requests, whichever
    is greater."""
    silent: bool = False
    """True: the allocation's process connected once, but sends no heartbeats now."""

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
        """Whether the allocation has not ended and is not being deleted. An allocation with a COMPLETING job is not
        live, because such a job does no more work."""
        status = self.allocation.status
        return not (status.is_ended or status.job_state == JobState.COMPLETING or self.deleting)

    @property
    def active(self) -> bool:
        return self.live and not self.allocation.spec.drain

    @property
    def started(self) -> bool:
        return self.allocation.status.job_state not in (None, JobState.PENDING)

    @property
    def suspended(self) -> bool:
        return self.allocation.status.job_state == JobState.SUSPENDED

    @property
    def serves(self) -> bool:
        return self.active and self.ready and not self.suspended

    def missing(self, now: float) -> bool:
        """Whether the allocation was ready once, is suspended or silent now, and became unready at least
        STAND_IN_SECONDS ago."""
        status = self.allocation.status
        known = get_condition(status.conditions, "Ready")
        if status.ready_at is None or known is None or known.status == "True" or not (self.suspended or self.silent):
            return False
        return now - known.last_transition_time.timestamp() >= STAND_IN_SECONDS

    @property
    def ends(self) -> float | None:
        """End of the walltime (Unix seconds); None if it is unknown, if the job has not started, or if the allocation
        is not live."""
        status = self.allocation.status
        return status.end_time.timestamp() if status.end_time is not None and self.started and self.live else None


@dataclass(frozen=True, slots=True)
class Successor:
    """A new allocation that is to replace the allocation `of`."""

    index: int
    of: str
    after_job: str | None = None
    """Job that must have ended before the successor starts."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    create: tuple[int, ...] = ()
    """Indices of allocations to make."""
    successors: tuple[Successor, ...] = ()
    drain: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    """Members to end because the pool has enough without them."""
    outdated: tuple[str, ...] = ()
    """Counted members with another template than the pool's, without those in `surplus`."""
    next_index: int = 0
    ends: EndCounts = field(default_factory=EndCounts)
    startup: float | None = None
    """Measured seconds from submit to ready."""
    startup_at: float | None = None
    again_after: float | None = None
    """Seconds until the back-off is over, or until a drained member may end; the shorter of the two times."""
    removable: bool = False
    """True: the pool is being deleted and has no allocation left, so the pool's finalizer may be removed."""


def plan_pool(
    pool: Pool,
    members: Sequence[Member],
    desired: int,
    now: float,
    *,
    slurm_known: bool,
    avoided: Sequence[BadNode] = (),
) -> PoolPlan:
    """Plan the changes to a pool's allocations. While Slurm cannot be read, only the pool's deletion continues.

    `avoided`: nodes that new allocations avoid.
    """
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
    surplus = _surplus(view, desired)
    going = [*surplus, *_replaced(view), *_outdated_before_use(view), *_wait_needlessly(view, avoided)]
    drain = {m.name for m in going if m.started and (m.ready or m.load > 0)}
    emptied, empty_in = _drained(members, now)
    return replace(
        plan,
        create=create,
        successors=renew,
        drain=tuple(sorted(drain)),
        delete=tuple(
            sorted({m.name for m in going if m.name not in drain} | emptied | _expired_history(members, avoided))
        ),
        surplus=tuple(m.name for m in surplus),
        outdated=tuple(m.name for m in view.counted if view.outdated(m) and m not in surplus),
        next_index=plan.next_index + len(create) + len(renew),
        again_after=min((seconds for seconds in (wait, empty_in) if seconds), default=None),
    )


@dataclass(frozen=True, slots=True)
class _PoolMembers:
    """The active members of a pool, grouped."""

    pool: Pool
    now: float
    hash: str
    counted: list[Member]
    """Members that make up the size of the pool."""
    missing: list[Member]
    """Active members for which `Member.missing` is true. While this is so, they do not count towards the size of the
    pool."""
    pairs: list[tuple[Member, Member]]
    """(old member, successor). The old member no longer counts towards the size, although it may still serve."""

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
    """Successors to submit now: first for members whose walltime ends soon, the earliest end first, then for outdated
    members that have started."""
    free = view.pool.spec.renewal.max_surge - len(view.pairs)
    if free <= 0 or len(view.counted) > desired:
        return ()
    held = view.pool.spec.allocation.within is not None  # all steps end together, with the user's job
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
    """Renewal times of members whose end is known, the earliest end first.

    An up-to-date member that already has a successor is included, because the pair uses one of the `maxSurge` places.
    """
    waiting = [old for old, _ in view.pairs if not view.outdated(old)]
    ends = sorted((m.ends, m.name) for m in [*view.counted, *waiting] if m.ends is not None)
    return dict(zip((name for _, name in ends), renewal_times(view.pool, [end for end, _ in ends]), strict=True))


def _surplus(view: _PoolMembers, desired: int) -> list[Member]:
    """Members to end because the pool has enough without them.

    Counted members are chosen in this order: outdated before up to date, then not started before started, then by
    rising load, then by the end of their walltime. If there is a surplus, or `desired` is 0, all missing members are
    returned too.
    """

    def order(m: Member) -> tuple[bool, bool, int, float, int]:
        return not view.outdated(m), m.started, m.load, m.ends or float("inf"), -m.index

    surplus = max(0, len(view.counted) - desired)
    return [*sorted(view.counted, key=order)[:surplus], *(view.missing if surplus or desired == 0 else [])]


def _replaced(view: _PoolMembers) -> list[Member]:
    """Members that may end because of their successor.

    The first case: the successor is ready, and the member's retire time has come. If the member's end is unknown, or
    the member or its successor is outdated, no retire time is awaited. The second case: the member is useless
    (`_useless`), and its successor is ready or waits for the member's end.
    """
    found = _renewal_times(view)

    def over(old: Member, successor: Member) -> bool:
        if _useless(view, old) and (successor.ready or _blocks_successor(successor)):
            return True
        turn = None if view.outdated(old) or view.outdated(successor) else found.get(old.name)
        return successor.ready and (turn is None or turn.retire_at <= view.now)

    return [old for old, successor in view.pairs if over(old, successor)]


def _blocks_successor(successor: Member) -> bool:
    """Whether the successor is submitted and cannot start while the member that it replaces still runs."""
    spec, status = successor.allocation.spec, successor.allocation.status
    waits = status.job_id is not None and not successor.started
    return waits and (spec.after_job is not None or status.pending_reason.is_limit)


def _useless(view: _PoolMembers, old: Member) -> bool:
    """Whether the allocation is outdated, or has too little walltime left for new work. A RolloutPool's allocation that
    has leases is not useless."""
    if isinstance(view.pool, RolloutPool) and old.load > 0:
        return False
    return view.outdated(old) or (old.ends is not None and not can_take_work(view.pool, old.ends, view.now))


class _Gap(NamedTuple):
    """Time without either of two allocations, the one that ends and its successor."""

    seconds: float
    """Shortest time that is expected."""
    start: float | None
    """Start of the successor that Slurm expects (Unix seconds); None if it names none after the end."""


def blocked(pool: Pool, members: Sequence[Member], now: float, failed: str = "") -> Reason | None:
    """Reason if a successor cannot be ready before the end of the member that it replaces.

    `failed`: text about the failures of the present template; empty if an allocation has become ready since the last
    failure.
    """
    if not any(m.active and m.ends is not None for m in members):
        return None
    view = _PoolMembers.of(pool, members, now)
    for old, successor in view.pairs:
        found = _late_successor(pool, old, successor, now)
        if found is not None:
            why, gap = found
            words = _gap_text(old, f"its successor {successor.name} waits: {why.message}", gap)
            return Reason(why.word, f"{words}{_held_up(view, old, gap.seconds)}")
    if not failed:
        return None
    due = {name for name, turn in _renewal_times(view).items() if turn.submit_at <= now}
    for old in (m for m in view.counted if m.name in due):
        gap = _Gap(startup_seconds(pool), None)
        return Reason("SuccessorFails", _gap_text(old, f"its successor {failed}", gap))
    return None


def _held_up(view: _PoolMembers, old: Member, gap: float) -> str:
    """Text about the members that end during the gap of `old`, and whose successors wait for a free place of `maxSurge`."""
    assert old.ends is not None
    if len(view.pairs) < view.pool.spec.renewal.max_surge:
        return ""
    names = sorted(m.name for m in view.counted if m.ends is not None and m.ends <= old.ends + gap)
    if not names:
        return ""
    shown = ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} others" if len(names) > MAX_NAMED else "")
    return f"; {shown} end{'s' if len(names) == 1 else ''} meanwhile too, and maxSurge lets no more successors be submitted"


def _late_successor(pool: Pool, old: Member, successor: Member, now: float) -> tuple[Reason, _Gap] | None:
    """(reason, gap) for a successor that does not start in time; None if it may start in time."""
    status = successor.allocation.status
    if successor.ready or successor.started or old.ends is None:
        return None
    after, reason = successor.allocation.spec.after_job is not None, status.pending_reason
    expected = status.start_time.timestamp() if status.start_time is not None else None
    submitted_at = status.intended_at.timestamp() if status.intended_at is not None else now
    # A successor without an expected start is late if Slurm has had time to give one, or if too little time is left.
    late = now - submitted_at > STUCK_SECONDS or old.ends - now < startup_seconds(pool)
    stuck = expected is None and (late or not reason.is_transient)
    if not (after or reason.is_limit or stuck or (expected is not None and expected >= old.ends)):
        return None
    start = expected if expected is not None and expected >= old.ends else None
    gap = _Gap((start or old.ends) - old.ends + startup_seconds(pool), start)
    if after:
        return Reason("StrategyReplace", "spec.renewal.strategy is Replace"), gap
    why = "Slurm has not answered its submit" if status.job_id is None else str(reason)
    word = reason.word if reason.is_limit or (stuck and reason.text) else "QueueTooLong"
    return Reason(word, why), gap


def _gap_text(old: Member, why: str, gap: _Gap) -> str:
    assert old.ends is not None
    length = f"at least {gap.seconds:.0f} s, the start-up of a successor, and its wait for the start after that end"
    if gap.start is not None:
        length = (
            f"about {gap.seconds:.0f} s, with a start at {as_text(gap.start)}, which Slurm expects, and the start-up"
        )
    return f"allocation {old.name} ends at {as_text(old.ends)} and {why}; expected gap: {length}"


def _outdated_before_use(view: _PoolMembers) -> list[Member]:
    """Outdated members to end because they have not served.

    A started member stays, because it may still become ready. There is one exception: a started successor ends if it is
    not ready, has no work, and the member that it should replace is still active. Otherwise hanging jobs of a bad
    template would stay.
    """
    hung = {s.name for _, s in view.pairs if not s.ready and s.load == 0}
    return [m for m in view.counted if view.outdated(m) and (not m.started or m.name in hung)]


def _wait_needlessly(view: _PoolMembers, avoided: Sequence[BadNode]) -> list[Member]:
    """Members that wait for another node than one that is no longer avoided. The new allocations may start there."""
    template = view.pool.spec.allocation
    waiting = (m for m in view.counted if not m.started and not view.outdated(m))
    return [m for m in waiting if avoids_needlessly(m.allocation, template, avoided)]


def _count_creatable(view: _PoolMembers, members: Sequence[Member], desired: int) -> int:
    """Number of allocations that may be made in addition to all live allocations. Draining allocations are live too."""
    spec = view.pool.spec
    most = spec.autoscaling.max_replicas if spec.autoscaling is not None else desired
    return most + spec.renewal.max_surge - sum(m.live for m in members)


def _drained(members: Sequence[Member], now: float) -> tuple[set[str], float]:
    """Return the names of the drained members that may end now, and the seconds until the next one may end (0.0 if
    there is none).

    A drained member without work may end EMPTY_GRACE_SECONDS after the order to drain. Before that, a lease may still be
    on its way to the member.
    """
    empty = [m for m in members if m.allocation.spec.drain and m.live and m.load == 0]
    waits = {m.name: at + EMPTY_GRACE_SECONDS - now for m in empty if (at := _draining_since(m)) is not None}
    return {name for name, wait in waits.items() if wait <= 0}, min((w for w in waits.values() if w > 0), default=0.0)


def _draining_since(member: Member) -> float | None:
    condition = get_condition(member.allocation.status.conditions, "Draining")
    return (
        condition.last_transition_time.timestamp() if condition is not None and member.allocation.spec.drain else None
    )


def _expired_history(members: Sequence[Member], avoided: Sequence[BadNode]) -> set[str]:
    """Ended members to delete: all drained members, and other members except the KEPT_ENDED newest and the last ones
    on each avoided node, because of which it is avoided."""
    finished = sorted((m for m in members if m.allocation.status.is_ended and not m.deleting), key=lambda m: -m.index)
    drained = [m.name for m in finished if m.allocation.spec.drain]
    evidence = {a.metadata.name for node in avoided for a in node.failed[-FAILURES_IN_A_ROW:]}
    rest = [m.name for m in finished if not m.allocation.spec.drain]
    return {*drained, *rest[KEPT_ENDED:]} - evidence


def _tear_down(plan: PoolPlan, members: Sequence[Member]) -> PoolPlan:
    """Drain busy members and delete the others. The pool is removable once no allocation is left."""
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
        and m.allocation.spec.after_job is None  # such a successor waits on purpose
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
