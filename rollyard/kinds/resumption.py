"""Points at which a rollout went on under a new lease."""

from __future__ import annotations

from rollyard.kinds.base import WireModel

LOSSES = {
    "WalltimeEnds": "its walltime ended",
    "Drained": "its allocation was drained",
    "CannotMove": "its environment cannot be saved, and the walltime was too short for all of RUN",
    "NodeAgentStopped": "its node agent was stopped",
    "Expired": "its node agent was silent",
    "NotReceived": "its node agent never got it",
    "AllocationEnded": "its job ended",
    "SandboxLost": "its sandbox was lost",
    "SandboxSilent": "its sandbox did not answer",
}
"""Reason why a lease ended without a result -> words. Other reasons are sentences."""


class Resumption(WireModel):
    """Beginning of a lease that followed a lost one: after a turn, or from the beginning."""

    turn: int
    """Number of turns that were kept. Their ids, logprobs and weights versions are as they were sampled. 0: the rollout began
    again."""
    reason: str = ""
    """Why the lease before ended."""
    node: str = ""
    """Node of the lease before."""
    snapshot: int | None = None
    """Turn after which the snapshot was taken with whose files the sandbox began. Null: it began with INIT."""
    replayed: int = 0
    """Number of kept turns whose tool calls were run again."""
    dropped: int = 0
    """Number of saved turns that were dropped, and sampled again."""
    why: str | None = None
    """Why turns were dropped, or why the rollout began again. Null if all saved turns were kept."""
    seconds: float = 0.0
    """Seconds that the kept turns' calls took again, with the restore of the snapshot."""

    @property
    def sentence(self) -> str:
        if not self.turn:
            return f"from the beginning: {self.why}" if self.why else "from the beginning"
        began = f" from the snapshot after turn {self.snapshot}" if self.snapshot else ""
        text = f"after turn {self.turn}{began}, {self.replayed} played again, {self.dropped} sampled again"
        moved = f"moved from node {self.node}, as {LOSSES.get(self.reason, self.reason)}: " if self.node else ""
        return f"{moved}{text}: {self.why}" if self.why else f"{moved}{text}"
