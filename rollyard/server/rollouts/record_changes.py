"""Changes of rollout records in one transaction. Their effects are carried out after the commit."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from rollyard.kinds.batch import BatchKey, BatchStatus
from rollyard.server.rollouts.step import Effect, Event, step
from rollyard.server.store.base import RolloutRecord, Transaction


@dataclass(slots=True)
class RecordChanges:
    """Changes that the writer collects, one object for each transaction."""

    stepped: list[tuple[RolloutRecord, RolloutRecord, tuple[Effect, ...]]] = field(default_factory=list)
    """Records before and after a step, with its effects."""
    inserted: list[RolloutRecord] = field(default_factory=list)
    """New records in the queue."""
    ended: deque[RolloutRecord] = field(default_factory=deque)
    """Rollouts of groups that became terminal and that no batch has counted yet."""
    batches: set[BatchKey] = field(default_factory=set)
    """Batches that changed."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of groups that were drawn, or that got a verdict, for the metrics."""
    ended_batches: list[BatchStatus] = field(default_factory=list)
    passed_over: int = 0

    def step(self, tx: Transaction, record: RolloutRecord, event: Event) -> RolloutRecord:
        """Step one record and write it. Raises Fenced."""
        after, effects = step(record, event)
        if after is not record:
            after = tx.put(after)
        self.stepped.append((record, after, effects))
        if after.status.terminal and not record.status.terminal and after.group is not None:
            self.ended.append(after)
        return after
