"""Outcomes of rollouts, and the results of RUN, as node agents upload them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from rollyard.kinds.base import WireModel, shared
from rollyard.kinds.resumption import Resumption
from rollyard.kinds.rollout import RolloutError, Status
from rollyard.trajectory.artifact import Artifact
from rollyard.trajectory.role_call import RoleCall
from rollyard.trajectory.segment import Segment
from rollyard.trajectory.turn import Turn


class Timings(WireModel):
    """Seconds in each stage of the last attempt; null for a stage that was not reached."""

    queued: float | None = None
    init: float | None = None
    run: float | None = None
    eval: float | None = None


class Outcome(WireModel):
    """Outcome of one rollout. The node agent uploads it; the server stores it with the rollout's identity."""

    status: Literal[Status.COMPLETED, Status.TRUNCATED, Status.FAILED, Status.INFRA_FAILED, Status.CANCELLED]
    reward: float | None = None
    parts: dict[str, float] = {}
    """Named parts of the reward."""
    metrics: dict[str, float] = {}
    notes: list[str] = []
    """Reasons for the reward, in sentences for people."""
    segments: list[Segment] = []
    turns: list[Turn] = []
    timings: Timings = shared(Timings())
    breaks: dict[str, int] = {}
    """Number of breaks of the token prefix, by cause."""
    endpoint: str | None = None
    node: str | None = None
    error: RolloutError | None = None
    harness_output: str | None = None
    """Output of the command of `type: command`, without the middle of a long one. Null for the built-in loop."""
    cut_short: str | None = None
    """Sentence that says which limit ended the agent's work. Null if none did."""
    role_calls: list[RoleCall] = []
    """Calls of the last attempt that the task handler made to models by role."""
    resumptions: list[Resumption] = []
    """Leases of the last attempt that followed a lost one: where they went on, and what was run and sampled again."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reward is not None and not self.status.scored:
            raise ValueError(f"a rollout that ended {self.status} has no reward")
        return self


class RunResult(WireModel):
    """Result of RUN: the outcome so far, and the artifact that EVAL scores. Any node can score the artifact, any number of
    times."""

    outcome: Outcome
    artifact: Artifact
    """Texts and bytes by name, as the handler's `collect` returned them."""
