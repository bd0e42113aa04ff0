"""Reasons why a queued rollout waits. The first matching row of the table `ROWS` gives one sentence. Pure.

Sentences are made from objects, connections and the queue. Slurm is not queried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rollyard.core.clock import as_text
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import Reason
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolStatus
from rollyard.kinds.rollout import CHECK, IN_QUEUE, PARKED, PREPARING, Stage, Status
from rollyard.kinds.rollout_pool import POLICY_ROLE, SPARE_SECONDS, STARTUP_SECONDS, RolloutPool
from rollyard.kinds.values.quantity import walltime_seconds, walltime_text
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server.rollouts.dispatch import exclusive_limit
from rollyard.server.rollouts.grant_round import MAX_MOVES_WITHOUT_TURN, needed_seconds
from rollyard.server.rollouts.history import cannot_move, moves_without_turn
from rollyard.server.rollouts.missing_image import is_tried, next_try
from rollyard.server.rollouts.pool_shortage import (
    PoolShortage,
    WaitReason,
    active,
    condition_with_status,
    failing,
    not_serving_yet,
    pending,
    scaled_to_zero,
    slurm_unreachable,
    starting,
    submit_unanswered,
    submitting,
    suspended_by_slurm,
)
from rollyard.server.rollouts.step import is_suspect
from rollyard.server.routing.staleness import ServedVersions, allowed_versions, why_waiting
from rollyard.store.base import GroupVersions, MissingImage, RolloutRecord
from rollyard.wire.node import IMAGE_REASON

LOOK_AHEAD_RECORDS = 10_000
"""For each stage, the positions of this many records at the head of a pool's queue are known."""


@dataclass(frozen=True, slots=True)
class ModelSupply:
    """An InferencePool that the RolloutPool uses."""

    name: str
    role: str
    pool: InferencePool | None
    allocations: Sequence[Allocation] = ()
    ready: int = 0
    """Number of endpoints that are ready and not draining, full or not."""
    count_with_room: int = 0
    """Number of endpoints in `ready` that are not full."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """The queue of one RolloutPool and everything that could take work from it, at one moment."""

    name: str
    now: float
    """Unix seconds."""
    pool: RolloutPool
    supplies: Sequence[ModelSupply] = ()
    allocations: Sequence[Allocation] = ()
    """The RolloutPool's own allocations."""
    node_agents: Sequence[ConnectedNodeAgent] = ()
    """Node agents that are connected and not draining."""
    exclusive: int = 0
    """Number of `node_agents` that are reserved for one rollout, because several node agents in a row were lost with it."""
    served: ServedVersions = field(default_factory=ServedVersions)
    groups: Mapping[str, GroupVersions] = field(default_factory=dict)
    """Group id -> versions, for groups whose rollouts must all have the same version."""
    places: Mapping[Stage, Mapping[int, int]] = field(default_factory=dict)
    """Stage -> seq of a record -> number of records of this stage before this record. Only the first LOOK_AHEAD_RECORDS of
    each stage are included."""
    missing_images: Mapping[str, MissingImage] = field(default_factory=dict)
    """By name."""


Row = Callable[[RolloutRecord, QueueView], WaitReason | None]


def explain(record: RolloutRecord, view: QueueView | None) -> Reason | None:
    """Return a word from ROWS, and `sentence (since ...)`; None if the rollout is not queued. `view`: None if the rollout's
    pool does not exist."""
    if record.status is not Status.QUEUED:
        return None
    if view is None:
        missing = f"RolloutPool {record.pool} does not exist; create it, or cancel the rollout"
        return Reason("PoolNotFound", f"{missing} (since {as_text(record.queued_at)})")
    found = ((word, row(record, view)) for word, row in ROWS)
    word, fact = next((word, fact) for word, fact in found if fact is not None)
    since = fact.since.timestamp() if isinstance(fact.since, datetime) else fact.since or 0.0
    # A rollout is queued again at each try of its image, and its wait for the image goes on.
    begun = record.created_at if word == IMAGE_REASON else record.queued_at
    kept = f"; its {record.saved_turns} saved turns are kept" if record.saved_turns else ""
    return Reason(word, f"{fact.sentence}{kept} (since {as_text(max(since, begun))})")


def explain_parked(record: RolloutRecord, view: QueueView | None, since: float) -> Reason:
    """Return PARKED and `sentence (since ...)` for a rollout in RUN that has lost its model server and has found no other."""
    facts = (row(record, view) for word, row in ROWS if view is not None and word in OF_MODEL_SERVERS)
    fact = next((fact for fact in facts if fact is not None), None)
    why = fact.sentence if fact is not None else "no model server accepts it yet"
    return Reason(PARKED, f"in RUN, its budget stands still: {why} (since {as_text(since)})")


def explain_preparing(agent: ConnectedNodeAgent) -> Reason | None:
    """Return PREPARING and a sentence for rollouts in INIT on a node that makes something once; None if it makes nothing."""
    return Reason(PREPARING, f"node {agent.identity.node} {agent.preparing}") if agent.preparing else None


# reasons that time does not remove


def _pool_deleting(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    if view.pool.metadata.deletion_timestamp is None:
        return None
    return WaitReason(f"RolloutPool {view.name} is being deleted", view.pool.metadata.deletion_timestamp)


def _suspended(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    if not view.pool.spec.suspend:
        return None
    sentence = f"RolloutPool {view.name} is suspended; `rollyard resume rp/{view.name}` resumes it"
    return WaitReason(sentence, _condition_since(view.pool.status, "Suspended", "True"))


def _inference_missing(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    for supply in _needed_supplies(record, view):
        if supply.pool is None:
            return WaitReason(
                f"role {supply.role} names InferencePool {supply.name!r}, which does not exist; create it"
            )
    return None


def _inference_suspended(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    for supply in _needed_supplies(record, view):
        if supply.pool is not None and supply.pool.spec.suspend:
            sentence = f"InferencePool {supply.name} is suspended; `rollyard resume ip/{supply.name}` resumes it"
            return WaitReason(sentence, _condition_since(supply.pool.status, "Suspended", "True"))
    return None


def _unknown_kind(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    sentence = unknown_kind(record.task_kind, view.name, view.node_agents)
    return WaitReason(sentence) if sentence is not None else None


def unknown_kind(kind: str, pool: str, node_agents: Sequence[ConnectedNodeAgent]) -> str | None:
    """Return why no node agent of the pool can take this task kind.

    None if a node agent can take it or has not reported its task kinds yet, or if the pool has no node agent.
    """
    if not node_agents or any(not a.kinds or kind in a.kinds for a in node_agents):
        return None
    known = ", ".join(sorted(set().union(*(a.kinds for a in node_agents))))
    failed = next((a.failed_kinds[kind] for a in node_agents if kind in a.failed_kinds), None)
    if failed is not None:
        return f"the node agents of RolloutPool {pool} cannot load the handler of task kind {kind!r}: {failed}"
    return (
        f"no node agent of RolloutPool {pool} has a handler for task kind {kind!r}; they have {known}. "
        f"Install it in their Python, then restart them: `rollyard suspend rp/{pool}` and `rollyard resume rp/{pool}`"
    )


# reasons that time removes


def _backoff(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    if record.not_before <= view.now:
        return None
    why = f" after {record.error.reason}: {record.error.message}" if record.error is not None else ""
    return WaitReason(f"attempt {record.attempt} starts at {as_text(record.not_before)}{why}")


def _image(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    missing = next((one for one in _missing_images(record, view) if one.failures or not one.trying), None)
    if missing is None:
        return None
    if is_tried(missing, view.now):
        return WaitReason(f"{missing.message}; a node agent tries it again now", missing.since)
    again = next_try(missing, view.now, needed=True)
    gives_up = max(record.created_at, missing.since) + view.pool.spec.sandbox.images.give_up_after_seconds
    return WaitReason(
        f"{missing.message}; it is tried again {again}, and the rollout waits for it until {as_text(gives_up)}",
        missing.since,
    )


def _image_pulled(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    for missing in _missing_images(record, view):
        if not missing.failures and missing.until > view.now:
            return WaitReason(f"a node of RolloutPool {view.name} pulls the image {missing.image}")
    return None


def _missing_images(record: RolloutRecord, view: QueueView) -> list[MissingImage]:
    if record.stage is Stage.EVAL:
        return []
    images = record.images(view.pool.spec.sandbox.default_image or "")
    return [view.missing_images[image] for image in images if image in view.missing_images]


def _weights_version(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    sentence = why_waiting(record, view.pool.spec.inference.get(POLICY_ROLE, ""), view.served)
    return WaitReason(sentence) if sentence is not None else None


# shortages of pools: InferencePools come first, because no rollout begins without them


def _shortage_row(reason: Callable[[PoolShortage], WaitReason | None]) -> Row:
    """Return a row that gives the reason for the first pool with this shortage."""

    def row(record: RolloutRecord, view: QueueView) -> WaitReason | None:
        facts = (reason(shortage) for shortage in _shortages(record, view))
        return next((fact for fact in facts if fact is not None), None)

    return row


def _shortages(record: RolloutRecord, view: QueueView) -> Iterator[PoolShortage]:
    for supply in _needed_supplies(record, view):
        if supply.pool is not None and not supply.ready:
            yield PoolShortage(supply.pool, active(supply.allocations), view.now)
    if not view.node_agents:
        yield PoolShortage(view.pool, active(view.allocations), view.now)


# the pools are ready, but they cannot take this rollout now


def _walltime(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    """Return a reason if each node agent's walltime is too short for the budgets of the remaining stages."""
    able = [a for a in view.node_agents if record.task_kind in a.kinds]
    ends = [a.walltime_ends for a in able if a.walltime_ends is not None]
    if not ends or len(ends) < len(able):
        return None
    if max(ends) - view.now >= view.pool.spec.stages.budget_seconds + SPARE_SECONDS:
        return None  # a request can only lower the pool's budgets, so the slow parse in `needed_seconds` is not needed
    spec, resumable = view.pool.spec, frozenset[str]().union(*(a.resumable_kinds for a in able))
    need = needed_seconds(record, spec, resumable) + SPARE_SECONDS
    last_start = max(ends) - need
    if last_start >= view.now:
        return None
    sentence = f"it needs {need:g} s of walltime{_why_so_much(record)}"
    if (most := walltime_seconds(spec.allocation.time_limit) - STARTUP_SECONDS) < need:
        return WaitReason(
            f"{sentence}, but no allocation of RolloutPool {view.name} has so much: set `allocation.timeLimit` to "
            f"{walltime_text(math.ceil(need) + STARTUP_SECONDS)} or more, or lower its budgets to {most:g} s",
            last_start,
        )
    sentence = f"{sentence}, but the last allocation of RolloutPool {view.name} ends at {as_text(max(ends))}"
    shortage = PoolShortage(view.pool, [a for a in active(view.allocations) if not a.status.ready], view.now)
    rows = (slurm_unreachable, submit_unanswered, pending, failing, starting, submitting)
    facts = (row(shortage) for row in rows)
    successor = next((fact.sentence for fact in facts if fact is not None), "no successor is submitted yet")
    return WaitReason(f"{sentence}; {successor}", last_start)


def _why_so_much(record: RolloutRecord) -> str:
    if moves_without_turn(record) >= MAX_MOVES_WITHOUT_TURN:
        return f" for all its budgets, as {MAX_MOVES_WITHOUT_TURN} walltimes in a row ended without a new turn"
    if cannot_move(record):
        return " for all its budgets, as its environment cannot be saved"
    return ""


def _endpoints_full(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    for supply in _needed_supplies(record, view):
        if supply.ready and not supply.count_with_room:
            admitting = (
                condition_with_status(supply.pool.status, "Admitting", "False") if supply.pool is not None else None
            )
            if admitting is not None and admitting.reason != "EndpointsFull":
                admitting = None  # the condition is older than the room that was counted
            why = f": {admitting.message}" if admitting is not None else ""
            since = admitting.last_transition_time if admitting is not None else None
            return WaitReason(f"each model server of InferencePool {supply.name} is full{why}", since)
    return None


def _group_version(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    if record.stage is Stage.EVAL or record.group is None or record.weights is None or not record.weights.same:
        return None
    group = view.groups.get(record.group, GroupVersions())
    if group.fixed is None or allowed_versions(record, group, view.served):
        return None
    return WaitReason(f"its group is sampled from {group.fixed}, but no endpoint that serves it is ready")


def _needs_exclusive(record: RolloutRecord, view: QueueView) -> WaitReason | None:
    if not is_suspect(record):
        return None
    sentence = f"{record.losses} node agents in a row were lost with it, so it waits for one without other work"
    node_agents, limit = len(view.node_agents), exclusive_limit(len(view.node_agents))
    if view.exclusive >= limit:
        sentence += f"; {view.exclusive} of {node_agents} node agents have such a rollout, and at most {limit} may"
    return WaitReason(sentence)


def _in_queue(record: RolloutRecord, view: QueueView) -> WaitReason:
    places, node_agents = view.places.get(record.stage, {}), len(view.node_agents)
    before, stage = places.get(record.seq), record.stage.value
    if before is None and len(places) >= LOOK_AHEAD_RECORDS:
        return WaitReason(
            f"more than {LOOK_AHEAD_RECORDS} rollouts for {stage} are before it in RolloutPool {view.name}"
        )
    if before:
        return WaitReason(f"{before} rollouts for {stage} are before it in RolloutPool {view.name}")
    if before is None or any(
        (a.free_eval if record.stage is Stage.EVAL else a.free_init) > 0 for a in view.node_agents
    ):
        return WaitReason("it is next and starts in a moment")
    return WaitReason(
        f"it is next, but all {stage} places of the {node_agents} node agents of RolloutPool {view.name} are busy"
    )


ROWS: tuple[tuple[str, Row], ...] = (
    ("PoolDeleting", _pool_deleting),
    ("PoolSuspended", _suspended),
    ("InferencePoolNotFound", _inference_missing),
    ("InferencePoolSuspended", _inference_suspended),
    ("UnknownTaskKind", _unknown_kind),
    ("Backoff", _backoff),
    (IMAGE_REASON, _image),
    ("WeightsVersion", _weights_version),
    ("SlurmUnreachable", _shortage_row(slurm_unreachable)),
    ("NoReplicas", _shortage_row(scaled_to_zero)),
    ("SubmitUnanswered", _shortage_row(submit_unanswered)),
    ("AllocationPending", _shortage_row(pending)),
    ("AllocationSuspended", _shortage_row(suspended_by_slurm)),
    ("AllocationFailed", _shortage_row(failing)),
    ("AllocationStarting", _shortage_row(starting)),
    ("Submitting", _shortage_row(submitting)),
    ("PoolNotReady", _shortage_row(not_serving_yet)),
    ("WalltimeTooShort", _walltime),
    ("ImagePulled", _image_pulled),
    ("EndpointsFull", _endpoints_full),
    ("GroupVersion", _group_version),
    ("NodeAgentForItself", _needs_exclusive),
    (IN_QUEUE, _in_queue),
)
"""(word, row). The first row that returns a reason is used. The last row always returns a reason."""


OF_MODEL_SERVERS = frozenset(
    {
        *("InferencePoolNotFound", "InferencePoolSuspended", "SlurmUnreachable", "NoReplicas", "SubmitUnanswered"),
        *("AllocationPending", "AllocationSuspended", "AllocationFailed", "AllocationStarting", "Submitting"),
        *("PoolNotReady", "EndpointsFull"),
    }
)
"""Words of the rows that can also explain why a rollout is parked."""


def _needed_supplies(record: RolloutRecord, view: QueueView) -> Sequence[ModelSupply]:
    """Return the InferencePools from which the rollout still has to sample: none at EVAL, and none for a check."""
    return () if record.stage is Stage.EVAL or record.mode == CHECK else view.supplies


def _condition_since(status: PoolStatus, type: str, word: str) -> datetime | None:
    found = condition_with_status(status, type, word)
    return found.last_transition_time if found is not None else None
