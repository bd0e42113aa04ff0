"""Work of RUN that earlier leases of an attempt have saved, and the rule whether a rollout can go on with it at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rollyard.kinds.resumption import Resumption
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.node.replay import Replay
from rollyard.node.snapshot_cost import loses_state
from rollyard.trajectory import SavedTurn
from rollyard.wire.node import Lease


@dataclass(frozen=True, slots=True)
class SavedWork:
    """Turns and snapshot with which a lease goes on."""

    turns: Sequence[SavedTurn] = ()
    snapshot: RolloutSnapshot | None = None
    """Snapshot with which the sandbox begins; None: it begins with INIT."""
    resumptions: tuple[Resumption, ...] = ()
    """Those of earlier leases."""
    count: int = 0
    """Number of turns that the server has."""
    failed: str | None = None
    """Why a part of what the server has is not used."""

    @property
    def begun_with(self) -> int:
        """Number of turns whose files the sandbox has from the beginning."""
        return self.snapshot.turn if self.snapshot is not None else 0

    @property
    def lost_state(self) -> bool:
        """Whether the snapshot lacks the state of tools that turns before it have used."""
        return bool(loses_state([one.turn for one in self.turns[: self.begun_with]]))

    def without(self, why: str) -> Self:
        """Return what is left to try: no snapshot, then no turns."""
        if self.snapshot is not None:
            return replace(self, snapshot=None, failed=why)
        return replace(self, turns=(), failed=why)

    def resumption(self, lease: Lease, replay: Replay, seconds: float) -> Resumption:
        return Resumption(
            turn=replay.kept,
            reason=lease.lost,
            node=lease.lost_node,
            snapshot=self.begun_with or None,
            replayed=replay.replayed,
            dropped=self.count - replay.kept,
            why="; ".join(filter(None, [self.failed, replay.why])) or None,
            seconds=round(seconds, 3),
        )


def why_never(lease: Lease, *, differs: bool, forgets: bool = False) -> str | None:
    """Return why a rollout does not go on after a lost lease; None if it may. `differs`: the task kind has an agent loop of
    its own that cannot be repeated. `forgets`: the task has an environment that cannot save its state."""
    if not lease.resume:
        return "`resume` is never in its pool or its request"
    if differs and lease.agent.command is None:
        return "the task kind says that its agent loop cannot be repeated"
    return "the task's environment cannot save its state: it has no `state` and `restore`" if forgets else None
