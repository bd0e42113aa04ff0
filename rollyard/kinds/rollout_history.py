"""History of a rollout, as its users see it."""

from __future__ import annotations

from enum import StrEnum

from rollyard.kinds.base import WireModel
from rollyard.kinds.rollout import Stage, Status


class HistoryEvent(StrEnum):
    """Words of `HistoryEntry.event`. Later releases may add words."""

    QUEUED = "Queued"
    LEASED = "Leased"
    STAGE_BEGUN = "StageBegun"
    ENDPOINT_MOVED = "EndpointMoved"
    HANDED_BACK = "HandedBack"
    IMAGE_MISSING = "ImageMissing"
    LEASE_LOST = "LeaseLost"
    FAULT = "Fault"
    OUTDATED = "Outdated"
    RESUMED = "Resumed"
    SAVING_STOPPED = "SavingStopped"
    EXEC = "Exec"
    COPY_OUT = "CopyOut"
    COPY_IN = "CopyIn"
    ENDED = "Ended"


LOSS_EVENTS = (HistoryEvent.LEASE_LOST, HistoryEvent.FAULT)
"""Events after which the rollout went on although something was lost. `RolloutRecord.lost` counts the same events. A lease
that its node agent handed back is none of them: at a drain or near the end of a walltime nothing is lost."""


class ChosenEndpoint(WireModel):
    """Endpoint that was chosen for one role when a node agent got the lease."""

    id: str
    reason: str = ""
    """`WarmPrefix`: the endpoint's cache has a part of the prompt. `SameNode`: the endpoint and the node agent run on
    the same node. `LeastLoad`: the endpoint had the least load."""


class HistoryEntry(WireModel):
    """One change of a rollout. Fields without a meaning for the event are null."""

    at: float
    """Unix seconds, by the server's clock. For the beginning of RUN: time at which the node agent's report reached the
    server. For the beginning of EVAL: time at which the result of RUN reached the server."""
    event: str
    """Word of `HistoryEvent`, such as `Leased`."""
    attempt: int
    lease: int | None = None
    """Number of the rollout's last lease so far, 1 for its first. A lost lease that another one resumes uses up no attempt, so
    an attempt may have several. Null before the first lease."""
    stage: Stage
    """Stage in which the event happened. For `Leased` and `StageBegun`: stage that begins."""
    reason: str | None = None
    """For `Leased`: why this node agent was chosen (`OnlyOne`, `MostRoom`, `HasImage` or `Exclusive`). For `Exec`,
    `CopyOut` and `CopyIn`: the name of the token's owner. For other events: a word, or a sentence that a node agent wrote."""
    message: str | None = None
    """For `HandedBack` and `LeaseLost`: what is kept. For `Exec`: the command that somebody ran in the rollout's sandbox. For
    `CopyOut` and `CopyIn`: the path in the
    sandbox."""
    node: str | None = None
    allocation: str | None = None
    free: int | None = None
    """Number of rollouts for which the chosen node agent had room."""
    able: int | None = None
    """Number of node agents that could have taken the rollout."""
    endpoints: dict[str, ChosenEndpoint] | None = None
    """Role -> endpoint."""
    weights_version: str | None = None
    """Version of the policy's weights when the lease was granted."""
    role: str | None = None
    """Role whose endpoint changed."""
    previous: str | None = None
    """Endpoint before the move."""
    endpoint: str | None = None
    """Endpoint after the move."""
    seconds: dict[str, float] | None = None
    """Seconds that this attempt has spent in each stage so far, as measured by the node agent."""
    turns: int | None = None
    """For `HandedBack`, `LeaseLost` and `Fault`: number of saved turns with which the next lease can go on."""
    retry_at: float | None = None
    """End of the back-off (Unix seconds)."""
    status: Status | None = None
    reward: float | None = None


class RolloutHistory(WireModel):
    """History of one rollout, oldest entry first. Long histories lack entries in the middle."""

    id: str
    namespace: str
    entries: list[HistoryEntry]
    dropped: int = 0
    """Number of entries that were dropped because the history was too long. The dropped entries came directly after the
    first `kept_first` entries."""
    kept_first: int = 0
    """Number of entries before the dropped entries."""


class LossSums(WireModel):
    """Lost attempts and leases with one reason, on one node."""

    reason: str | None
    """Null: not known."""
    node: str | None
    losses: int
    rollouts: int
    newest: str
    """Rollout with the newest of these losses."""
    newest_at: float
    """Unix seconds."""


class LossSummary(WireModel):
    """Answer of `GET /v1/rollouts/losses`, the most losses first.

    Counted are the entries `LeaseLost` and `Fault` of the rollouts' histories: what a rollout lost and then went on. A loss
    that ended the rollout is not in it, nor is a lease that was handed back. Long histories lack entries in the middle.
    """

    since: float
    """Unix seconds."""
    more: bool
    """Whether there were more rollouts with losses than are read; then only the newest ones are counted."""
    rows: list[LossSums]
