"""History of a rollout: lines of JSON in its record. `step` adds a line for each change. Pure.

A line is `[time, event, attempt, stage, fields]`. The history is stored as one text, which is not parsed when a record
is read or written. The first KEPT_FIRST and the last KEPT_LAST lines are kept. In a longer history a line with the
number of dropped entries stands between these two parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_history import ChosenEndpoint, HistoryEntry, HistoryEvent, RolloutHistory
from rollyard.store.base import RolloutRecord
from rollyard.wire.node import CANNOT_MOVE_REASON, WALLTIME_REASON

KEPT_FIRST, KEPT_LAST = 8, 24
MAX_TEXT_CHARS = 200
INTERRUPTIONS = (HistoryEvent.LEASE_LOST, HistoryEvent.HANDED_BACK, HistoryEvent.FAULT)
"""Events that end a lease without a result, after which another lease may go on."""


@dataclass(frozen=True, slots=True)
class LeaseChoice:
    """Reason why a lease went to its node agent and its endpoints."""

    node: str = ""
    free: int = 0
    """Number of rollouts for which the node agent had room."""
    able: int = 0
    """Number of node agents that could have taken the rollout."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Role -> reason."""


def with_entry(record: RolloutRecord, at: float, event: HistoryEvent, stage: Stage | None = None, **fields: Any) -> str:
    """Return the record's history with one more entry. Empty fields are left out. A long `reason` or `message` is cut.

    `stage`: stage that begins with the event; None if the record's stage does not change.
    """
    kept = {name: value for name, value in fields.items() if value is not None and value != "" and value != {}}
    for name in ("reason", "message"):
        if len(kept.get(name, "")) > MAX_TEXT_CHARS:
            kept[name] = kept[name][:MAX_TEXT_CHARS]
    line = to_json([round(at, 3), event.value, record.attempt, (stage or record.stage).value, kept]).decode()
    if record.history.count("\n") < KEPT_FIRST + KEPT_LAST:
        return f"{record.history}{line}\n"
    lines = record.history.split("\n")[:-1]
    dropped = int(lines.pop(KEPT_FIRST)) if len(lines) > KEPT_FIRST + KEPT_LAST else 0
    return "\n".join([*lines[:KEPT_FIRST], str(dropped + 1), *lines[KEPT_FIRST + 1 :], line, ""])


def lease_says(record: RolloutRecord, event: HistoryEvent, message: str) -> bool:
    """Whether the present lease has this entry."""
    for line in reversed(record.history.split("\n")[:-1]):
        found = from_json(line)
        if isinstance(found, int) or found[1] == HistoryEvent.LEASED:
            return False
        if found[1] == event and found[4].get("message", "") == message[:MAX_TEXT_CHARS]:
            return True
    return False


def last_loss(record: RolloutRecord) -> tuple[str, str]:
    """Return why the lease before the present one ended without a result, and its node; empty if that was not so."""
    lines = record.history.rsplit("\n", 3)[-3:-1]
    if len(lines) < 2:
        return "", ""
    _, event, _, stage, fields = from_json(lines[0])
    if event not in INTERRUPTIONS or stage == Stage.EVAL or (event == HistoryEvent.FAULT and not record.saved_turns):
        return "", ""
    return str(fields.get("reason", "")), str(fields.get("node", ""))


def cannot_move(record: RolloutRecord) -> bool:
    """Whether a node agent found that the rollout cannot go on elsewhere: its environment cannot be saved."""
    return f'"reason":"{CANNOT_MOVE_REASON}"' in record.history


def moves_without_turn(record: RolloutRecord) -> int:
    """Return how many leases in a row ended with a walltime and as many saved turns as the record has now."""
    count = 0
    for line in reversed(record.history.split("\n")[:-1]):
        found = from_json(line)
        if isinstance(found, int) or found[1] in (HistoryEvent.FAULT, HistoryEvent.OUTDATED):
            break
        _, event, _, _, fields = found
        if event == HistoryEvent.HANDED_BACK and fields.get("reason") == WALLTIME_REASON:
            if fields.get("turns", 0) != record.saved_turns:
                break
            count += 1
    return count


def most_turns_lost(record: RolloutRecord) -> int:
    """Return the greatest number of saved turns with which a lease was lost."""
    found = map(from_json, record.history.split("\n")[:-1])
    return max(
        (one[4].get("turns", 0) for one in found if not isinstance(one, int) and one[1] == HistoryEvent.LEASE_LOST),
        default=0,
    )


def history_of(record: RolloutRecord) -> RolloutHistory:
    """Return a record's history."""
    entries = [HistoryEntry(at=record.created_at, event=HistoryEvent.QUEUED, attempt=1, stage=Stage.INIT)]
    lines = [from_json(line) for line in record.history.split("\n")[:-1]]
    dropped = next((line for line in lines if isinstance(line, int)), 0)
    lease = 0 if dropped else record.fence - _leases(lines)
    for place, found in enumerate(lines):
        if isinstance(found, int):
            lease = record.fence - _leases(lines[place + 1 :])
            continue
        at, event, attempt, stage, fields = found
        for role, (id, reason) in fields.get("endpoints", {}).items():
            fields["endpoints"][role] = ChosenEndpoint(id=id, reason=reason)
        lease += event == HistoryEvent.LEASED
        entry = {**fields, "at": at, "event": event, "attempt": attempt, "lease": lease or None, "stage": stage}
        entries.append(HistoryEntry.model_validate(entry, extra="ignore"))
    kept_first = KEPT_FIRST + 1 if dropped else len(entries)
    return RolloutHistory(
        id=record.id, namespace=record.namespace, entries=entries, dropped=dropped, kept_first=kept_first
    )


def _leases(lines: Sequence[Any]) -> int:
    return sum(1 for line in lines if not isinstance(line, int) and line[1] == HistoryEvent.LEASED)
