"""Outcomes of attempts that failed, and the reason why nothing was sampled. Pure."""

from __future__ import annotations

from rollyard.core.errors import NothingSampled, RollyardError, StageTimeout
from rollyard.kinds.base import evolve
from rollyard.kinds.failure_table import ending_of
from rollyard.kinds.rollout import Stage, Status
from rollyard.trajectory import Outcome


def failed_outcome(so_far: Outcome | None, stage: Stage, error: RollyardError, node: str) -> Outcome:
    """Build an outcome without a reward, as the failure table says. It keeps the tokens of `so_far`, for inspection."""
    base, row = so_far or Outcome(status=Status.FAILED, node=node), ending_of(error)
    return evolve(base, status=row.status, reward=None, error=row.error(stage, str(error)))


def why_nothing_sampled(overdue: bool, calls: int, tokens: int, seconds: float) -> RollyardError:
    """Return an error that explains why RUN ended without a sampled token.

    `overdue`: the budget of `seconds` ran out. `calls`: number of model calls. `tokens`: number of tokens that arrived in
    turns that were cut off.
    """
    if not overdue:
        return NothingSampled("the agent ended without a sampled token")
    if tokens:
        return NothingSampled(
            f"RUN's budget of {seconds:g} s ended during the first turn, after {tokens} tokens: "
            "raise the budget, or lower `sampling.max_tokens`"
        )
    if calls:
        return StageTimeout(f"no model server sent a token within RUN's budget of {seconds:g} s")
    return NothingSampled(f"the agent's command made no model call within RUN's budget of {seconds:g} s")
