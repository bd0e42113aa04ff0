"""Conditions of a pool, and events about their changes. Pure.

Ready is about the number of serving allocations, with any template. Updated is about the change to the present template,
like a Deployment's Progressing. Ready's message names present obstacles before earlier failures. Updated's message
names failures first. A message has times of day instead of remaining seconds, so that the message stays the same while
nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollyard.core.clock import as_datetime, as_text
from rollyard.core.errors import Refusal
from rollyard.kinds.allocation import SUBMIT_REFUSED, SUBMITTED, Allocation
from rollyard.kinds.base import Condition, ConditionUpdate, Reason, get_condition, set_conditions
from rollyard.kinds.event import PoolEvent
from rollyard.kinds.pool import GPU_HOURS_SPENT, PoolStatus, Replicas
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import SPARE_SECONDS, RolloutPool
from rollyard.kinds.values.job_state import JobState
from rollyard.kinds.values.slurm_reasons import UNKNOWN, PendingReason
from rollyard.reconcilers.autoscaler import ScaleDecision
from rollyard.reconcilers.failure_backoff import FAILURES, INTERRUPTIONS, EndCounts, last_ended
from rollyard.reconcilers.job_listings import QueueAccess
from rollyard.reconcilers.node_avoidance import BadNode
from rollyard.reconcilers.pending_jobs import pending_reason
from rollyard.reconcilers.plan import Member, blocked
from rollyard.reconcilers.pool_observation import PoolObservation
from rollyard.reconcilers.refused_field import refused_fields
from rollyard.wire.tool_proof import ToolProof

CRASH_LOOP = 3
"""After this many failures in a row, or more, the reason of the conditions is CrashLoop instead of AllocationFailed."""
SUBMIT_ANSWER_SECONDS = 5.0
"""Seconds after which a submit without an answer is reported."""
SHORT_WAIT_SECONDS = 10.0
"""A wait that is usually short is named before an earlier failure only if the wait has lasted this many seconds."""
NO_WARNING = {
    "AllReady",
    "Deleting",
    "Loading",
    "NotBlocked",
    "Suspended",
    "Updated",
    "Updating",
    "WaitingForAllocations",
    "WaitingForSlurm",
    "WeightsUpdating",
}
"""Reasons of Ready and Updated whose events have the type Normal. Events about any other reason are warnings."""

NOT_PROVEN = "no process has loaded the model's chat template yet; tasks with tools are accepted"


@dataclass(frozen=True, slots=True)
class PoolView:
    """Input of the conditions."""

    pool: Pool
    observation: PoolObservation
    scale: ScaleDecision
    ends: EndCounts
    queue: QueueAccess
    now: float
    avoided: Sequence[BadNode] = ()

    @property
    def members(self) -> Sequence[Member]:
        return self.observation.members

    @property
    def active(self) -> list[Allocation]:
        return [m.allocation for m in self.members if m.active]

    def outdated(self, allocation: Allocation) -> bool:
        return allocation.spec.template_hash != self.ends.template


def replicas(view: PoolView) -> Replicas:
    """Numbers of replicas. Ready and updated are at most the desired number, because allocations beyond this number
    will soon end."""
    desired, serving = view.scale.desired, [m for m in view.members if m.serves]
    return Replicas(
        desired=desired,
        requested=sum(a.status.intents > 0 for a in view.active),
        observed=sum(a.status.job_state is not None for a in view.active),
        ready=min(desired, len(serving)),
        updated=min(desired, sum(not view.outdated(m.allocation) for m in serving)),
    )


def pool_conditions(view: PoolView) -> list[Condition]:
    """Return all conditions of the pool. A condition without an update stays as it was."""
    meta, status = view.pool.metadata, view.pool.status
    found = (
        ready(view),
        updated(view),
        renewal_blocked(view),
        nodes_usable(view),
        slurm_reachable(view.queue),
        scaling_limited(view),
        admitting(view),
        *view.observation.conditions,
        suspended(view.pool),
    )
    updates = (update for update in found if update is not None)
    return set_conditions(status.conditions, updates, generation=meta.generation, now=as_datetime(view.now))


def changes(before: PoolStatus, after: PoolStatus) -> Iterator[PoolEvent]:
    """Yield one event for each new reason of Ready and Updated, but only one if both have the same new reason. Yield
    one event when RenewalBlocked becomes true, and one when ImagesReady, ImagesWritable, EnoughMemory, ToolCalls or NodesUsable
    becomes false."""
    recorded: set[str] = set()
    for type in ("Ready", "Updated"):
        old, new = (get_condition(s.conditions, type) for s in (before, after))
        if new is not None and new.reason not in recorded and (old is None or old.reason != new.reason):
            recorded.add(new.reason)
            yield PoolEvent(*new.why, warning=new.reason not in NO_WARNING)
    old, new = (get_condition(s.conditions, "RenewalBlocked") for s in (before, after))
    if new is not None and new.status == "True" and (old is None or old.status != "True"):
        yield PoolEvent("RenewalBlocked", str(new.why), warning=True)
    for type in ("ImagesReady", "ImagesWritable", "EnoughMemory", "ToolCalls", "NodesUsable"):
        old, new = (get_condition(s.conditions, type) for s in (before, after))
        if new is not None and new.status == "False" and (old is None or old.status != "False"):
            yield PoolEvent(*new.why, warning=True)


def ready(view: PoolView) -> ConditionUpdate:
    """Whether the desired number of allocations serves now, with any template."""
    pool, observation, count = view.pool, view.observation, replicas(view)
    counted = f"{count.ready} of {count.desired} allocations ready"
    if pool.metadata.deletion_timestamp is not None:
        return ConditionUpdate("Ready", False, "Deleting", f"{len(view.members)} allocations left")
    if pool.spec.suspend:
        return ConditionUpdate("Ready", False, "Suspended", "spec.suspend is true")
    if view.scale.limit is not None and view.scale.limit.word == GPU_HOURS_SPENT:
        return ConditionUpdate("Ready", False, GPU_HOURS_SPENT, view.scale.limit.message)
    if observation.problem is not None:
        return ConditionUpdate("Ready", False, *observation.problem)
    if count.ready and (ending := _why_nothing_placed(view)):
        return ConditionUpdate("Ready", False, "WalltimeEnds", ending)
    if count.ready >= count.desired:
        return ConditionUpdate("Ready", True, "AllReady", counted)
    why = _why_too_few(view)
    return ConditionUpdate("Ready", False, why.word, f"{counted}{f'; {why.message}' if why.message else ''}")


def updated(view: PoolView) -> ConditionUpdate:
    """Whether the pool has reached its present spec. Once true, the condition stays true until the template changes."""
    pool, count = view.pool, replicas(view)
    counted = f"{count.updated} of {count.desired} allocations are up to date and ready"
    if pool.metadata.deletion_timestamp is not None:
        return ConditionUpdate("Updated", False, "Deleting")
    known = get_condition(pool.status.conditions, "Updated")
    come = known is not None and known.status == "True" and pool.status.template_hash == view.ends.template
    if (come or count.updated >= count.desired) and not any(view.outdated(a) for a in view.active):
        return ConditionUpdate("Updated", True, "Updated", "all allocations are up to date")
    if (failed := _failure_reason(view)) is not None:
        return ConditionUpdate("Updated", False, failed.word, f"{counted}; {failed.message}")
    coming = [a for a in view.active if not view.outdated(a) and not a.status.ready]
    queue = pending_reason(coming)
    trouble = str(view.observation.why_not_ready or "")
    why = _unanswered(coming, view.now) or (queue.message if queue is not None else trouble)
    return ConditionUpdate("Updated", False, "Updating", f"{counted}{f'; {why}' if why else ''}")


def renewal_blocked(view: PoolView) -> ConditionUpdate | None:
    """Whether a successor cannot be ready in time, with the reason and the length of the gap.

    None until this happens for the first time.
    """
    if (found := _renewal_blocked_reason(view)) is not None:
        return ConditionUpdate("RenewalBlocked", True, *found)
    known = get_condition(view.pool.status.conditions, "RenewalBlocked")
    return ConditionUpdate("RenewalBlocked", False, "NotBlocked") if known is not None else None


def nodes_usable(view: PoolView) -> ConditionUpdate | None:
    """Whether the pool avoids no node. None until it avoids one for the first time."""
    if view.avoided:
        words = "; ".join(_avoided_text(node) for node in view.avoided)
        hint = "to avoid a node for longer, write it in spec.allocation.exclude"
        return ConditionUpdate("NodesUsable", False, "NodeAvoided", f"{words}; {hint}")
    known = get_condition(view.pool.status.conditions, "NodesUsable")
    return ConditionUpdate("NodesUsable", True, "NoNodeAvoided") if known is not None else None


def slurm_reachable(queue: QueueAccess) -> ConditionUpdate | None:
    """Whether Slurm's queue can be read; None until the queue has been read once or a query has failed."""
    if queue.unreachable_since is None:
        lead = queue.clock_lead
        ahead = f"{abs(lead):.0f} s {'ahead of' if lead > 0 else 'behind'} the server's"
        words = f"Slurm's clock is {ahead}; its times are corrected" if lead else ""
        return ConditionUpdate("SlurmReachable", True, "Reachable", words) if queue.is_known else None
    word, what = ("Doubted", "in doubt") if queue.is_doubted else ("NoAnswer", "unknown")
    message = (
        f"Slurm's queue is {what} since {as_text(queue.unreachable_since)} ({queue.why}); "
        "until it can be read, nothing is created or ended"
    )
    return ConditionUpdate("SlurmReachable", False, word, message)


def scaling_limited(view: PoolView) -> ConditionUpdate | None:
    """Whether something keeps the size from following the demand. None for a fixed size that was never limited."""
    if view.scale.limit is not None:
        return ConditionUpdate("ScalingLimited", True, *view.scale.limit)
    pool = view.pool
    if pool.spec.autoscaling is None and get_condition(pool.status.conditions, "ScalingLimited") is None:
        return None
    return ConditionUpdate("ScalingLimited", False, "DesiredWithinRange")


def admitting(view: PoolView) -> ConditionUpdate | None:
    """Whether a model server takes one more session. None until all servers in service are full for the first time."""
    why, known = view.observation.why_not_admitting, get_condition(view.pool.status.conditions, "Admitting")
    if known is None and (why is None or why.word != "EndpointsFull"):
        return None
    return (
        ConditionUpdate("Admitting", False, *why) if why is not None else ConditionUpdate("Admitting", True, "HasRoom")
    )


def suspended(pool: Pool) -> ConditionUpdate:
    if pool.spec.suspend:
        return ConditionUpdate("Suspended", True, "Suspended", "the pool gives back all its allocations")
    return ConditionUpdate("Suspended", False, "NotSuspended")


def _renewal_blocked_reason(view: PoolView) -> Reason | None:
    failed = _failure_reason(view)
    return blocked(view.pool, view.members, view.now, failed.message if failed is not None else "")


def _why_too_few(view: PoolView) -> Reason:
    """Reason why fewer allocations serve than desired. Present obstacles come first, then failures, then slow starts."""
    suspended = [m.allocation for m in view.members if m.active and m.suspended]
    if suspended:
        jobs = ", ".join(f"job {a.status.job_id} of {a.metadata.name}" for a in suspended)
        return Reason("SuspendedBySlurm", f"suspended by Slurm: {jobs}")
    failed, queue = _failure_reason(view), pending_reason(view.active)
    passing = failed is not None or queue is None or queue.word == UNKNOWN
    if queue is not None and (not passing or _is_notable_wait(view, queue.word)):
        return Reason("WaitingForSlurm", queue.message + (f"; before that: {failed.message}" if failed else ""))
    if why := _unanswered(view.active, view.now):
        return Reason("WaitingForSlurm", why + (f"; before that: {failed.message}" if failed else ""))
    if failed is not None:
        return failed
    if view.observation.why_not_ready is not None:
        return view.observation.why_not_ready
    why = _interruption_text(view) or _first_starting(view) or (queue.message if queue is not None else "")
    return Reason("WaitingForAllocations", why)


def _failure_reason(view: PoolView) -> Reason | None:
    """Reason why the last allocation of the present template failed; None if none failed, or if one has become ready
    since."""
    ends = view.ends
    if not ends.failing:
        return None
    last = last_ended((m.allocation for m in view.members), FAILURES, ends.template)
    words = _end_text(last) if last is not None else "its allocation no longer exists"
    times = f"failed {ends.failures} times in a row; the last: {words}" if ends.failures > 1 else f"failed: {words}"
    if last is not None and last.status.refusal is not None:
        word = "SubmitLimited" if last.status.refusal is Refusal.LIMIT else SUBMIT_REFUSED
    else:
        word = "CrashLoop" if ends.failures >= CRASH_LOOP else "AllocationFailed"
    return Reason(word, f"{times}{_retry_text(view)}")


def _interruption_text(view: PoolView) -> str:
    """Text about the last allocation that a node, an administrator or a user ended; empty once an allocation has become
    ready after this end."""
    last = last_ended((m.allocation for m in view.members), INTERRUPTIONS)
    if last is None or last.status.end_time is None:
        return ""
    since = [m.allocation.status.ready_at for m in view.members if m.allocation.status.ready_at is not None]
    if max(since, default=last.status.end_time) > last.status.end_time:
        return ""
    often = (
        f"ended from outside {view.ends.interruptions} times in a row; the last: " if view.ends.is_interrupted else ""
    )
    return f"{often}{_end_text(last)}{_retry_text(view) or '; it is replaced'}"


def _first_starting(view: PoolView) -> str:
    """Text about the first running allocation whose process has not connected, or no longer reports."""
    for m in view.members:
        status = m.allocation.status
        if m.active and m.started and not m.ready:
            silent = "no longer reports" if m.silent else "has not connected yet"
            return f"{m.name} {silent} (job {status.job_id} on {status.node})"
    return ""


def _retry_text(view: PoolView) -> str:
    return f"; the next one is created at {as_text(view.ends.next_at)}" if view.ends.next_at > view.now else ""


def _end_text(allocation: Allocation) -> str:
    status = allocation.status
    if status.job_id is None:
        given = refused_fields(status.reason, allocation.spec.template) if status.refusal is not None else ""
        return f"{allocation.metadata.name}: {status.reason}{f' (`allocation` has {given})' if given else ''}"
    return f"{allocation.metadata.name} ended {status.job_state}: {status.reason}"


def _avoided_text(node: BadNode) -> str:
    often = f"{len(node.failed)} allocations in a row failed there before they were ready"
    return f"no job starts on {node.name} until {as_text(node.until)}: {often}; the last: {_end_text(node.failed[-1])}"


def _unanswered(allocations: Sequence[Allocation], now: float) -> str:
    """Text about submits that have taken too long; empty if no submit has."""
    late: list[tuple[float, str, str]] = []
    for a in allocations:
        submitted_at, condition = _submitted_at(a), get_condition(a.status.conditions, SUBMITTED)
        if a.status.job_id is not None or a.status.is_ended or submitted_at is None:
            continue
        if condition is not None and condition.status != "True":
            late.append((submitted_at, a.metadata.name, condition.message))
        elif now - submitted_at > SUBMIT_ANSWER_SECONDS and a.status.intents == 0:
            late.append((submitted_at, a.metadata.name, f"it waits in the server since {as_text(submitted_at)}"))
        elif now - submitted_at > SUBMIT_ANSWER_SECONDS:
            late.append((submitted_at, a.metadata.name, f"Slurm has not answered since {as_text(submitted_at)}"))
    if not late:
        return ""
    _, name, why = min(late)
    others = f" and {len(late) - 1} others" if len(late) > 1 else ""
    return f"the submit of {name}{others} is unfinished: {why}"


def _submitted_at(allocation: Allocation) -> float | None:
    submitted_at = allocation.status.intended_at or allocation.metadata.creation_timestamp
    return submitted_at.timestamp() if submitted_at is not None else None


def _is_notable_wait(view: PoolView, reason: str) -> bool:
    """Whether the wait for Slurm will probably not end soon. The message then names this wait before an earlier
    failure."""
    if not PendingReason(reason).is_transient:
        return True
    pending = [
        a for a in view.active if a.status.job_state == JobState.PENDING and a.status.pending_reason.word == reason
    ]
    submitted_at = [at for a in pending if (at := _submitted_at(a)) is not None]
    return any(view.now - at > SHORT_WAIT_SECONDS for at in submitted_at)


def _why_nothing_placed(view: PoolView) -> str:
    """Reason why no rollout can be placed although allocations are ready; empty if a rollout can be placed."""
    pool, serving = view.pool, [m for m in view.members if m.serves]
    if not isinstance(pool, RolloutPool):
        return ""
    need = pool.spec.least_seconds + SPARE_SECONDS
    ends = [m.ends for m in serving if m.ends is not None and m.ends - view.now < need]
    if len(ends) < len(serving):
        return ""
    held_up = _renewal_blocked_reason(view)
    coming = pending_reason([a for a in view.active if not a.status.ready])
    obstacle = held_up or coming
    why = obstacle.message if obstacle is not None else "no successor is ready yet"
    return (
        f"accepts no rollouts: the walltime ends at {as_text(max(ends))}, and a rollout needs {need - SPARE_SECONDS:g} s; "
        f"{why}"
    )


def tool_calls(proofs: Sequence[ToolProof]) -> ConditionUpdate:
    """Whether the model's tool calls are read. One refuted proof is enough for False; Unknown says less than True."""
    for status, known in (("False", False), ("True", True), ("Unknown", None)):
        for proof in proofs:
            if proof.status == status:
                return ConditionUpdate("ToolCalls", known, proof.reason, proof.message)
    return ConditionUpdate("ToolCalls", None, "NotProven", NOT_PROVEN)
