"""Changes of rollout records in one transaction. The effects of the changes are carried out after the commit."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from rollyard.kinds.batch import BatchKey, BatchStatus
from rollyard.server.rollouts.step import Effect, Event, step
from rollyard.server.store.base import RolloutRecord, Transaction


@dataclass(slots=True)
class RecordChanges:
    """Changes of one transaction, collected while it runs. Each transaction has its own object."""

    stepped: list[tuple[RolloutRecord, RolloutRecord, tuple[Effect, ...]]] = field(default_factory=list)
    """For each step: the record before, the record after, the effects."""
    inserted: list[RolloutRecord] = field(default_factory=list)
    """New records, which are queued."""
    ended: deque[RolloutRecord] = field(default_factory=deque)
    """Rollouts that became terminal and belong to a group. No batch has counted them yet."""
    batches: set[BatchKey] = field(default_factory=set)
    """Batches that changed."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Numbers of groups, for the metrics. The keys are `drawn`, `cancelled` and the verdicts."""
    ended_batches: list[BatchStatus] = field(default_factory=list)
    passed_over: int = 0

    def step(self, tx: Transaction, record: RolloutRecord, event: Event) -> RolloutRecord:
        """Apply the event to the record, and store the result if it differs. Raises Fenced."""
        after, effects = step(record, event)
        if after is not record:
            after = tx.put(after)
        self.stepped.append((record, after, effects))
        if after.status.terminal and not record.status.terminal and after.group is not None:
            self.ended.append(after)
        return after
