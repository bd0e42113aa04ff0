"""Changes of rollout records in one transaction. The effects of the changes are carried out after the commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rollyard.kinds.rollout import RolloutKey, Stage
from rollyard.server.rollouts.step import Effect, Event, RunBegun, step
from rollyard.store.base import RolloutRecord
from rollyard.store.rollout_transaction import Transaction

WhenRunBegun = Callable[[RolloutKey, int], float | None]
"""Function that takes a rollout and its fence, and returns the Unix seconds at which the holder reported RUN; None
before that."""


def _never(key: RolloutKey, fence: int) -> None:
    return None


def with_reported_stage(record: RolloutRecord, run_begun: WhenRunBegun) -> RolloutRecord:
    """Return the record. If its holder has reported RUN and the record still has INIT, the result has the stage
    RUN."""
    if not record.leased or record.stage is not Stage.INIT:
        return record
    at = run_begun(record.key, record.fence)
    return record if at is None else step(record, RunBegun(at, record.fence))[0]


@dataclass(slots=True)
class RecordChanges:
    """Changes of one transaction, collected while it runs. Each transaction has its own object."""

    run_begun: WhenRunBegun = _never
    stepped: list[tuple[RolloutRecord, RolloutRecord, tuple[Effect, ...]]] = field(default_factory=list)
    """For each step: the record before, the record after, the effects."""
    inserted: list[RolloutRecord] = field(default_factory=list)
    """New records, which are queued."""
    ended: deque[RolloutRecord] = field(default_factory=deque)
    """Rollouts that became terminal and belong to a group. No batch has counted them yet."""
    after_commit: list[Callable[[], None]] = field(default_factory=list)
    """Functions that are called on the event loop after the commit, once the effects are carried out."""

    def step(self, tx: Transaction, record: RolloutRecord, event: Event) -> RolloutRecord:
        """Apply the event to the record that `with_reported_stage` returns. Store the record if it changed. Raises
        Fenced."""
        after, effects = step(with_reported_stage(record, self.run_begun), event)
        if after is not record:
            after = tx.put(after)
        if record.saved_turns and not after.saved_turns:
            tx.delete_turns(after)
        self.stepped.append((record, after, effects))
        if after.status.terminal and not record.status.terminal and after.group is not None:
            self.ended.append(after)
        return after
