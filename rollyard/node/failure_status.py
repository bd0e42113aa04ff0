"""Maps an error to a rollout status: Failed or InfraFailed. Pure."""

from __future__ import annotations

from rollyard.core.errors import (
    ContextExceeded,
    EndpointError,
    EndpointRefused,
    ImageNotFound,
    NodeFault,
    NothingSampled,
    RollyardError,
    SandboxError,
    StageTimeout,
    TaskError,
)
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Outcome, RolloutError, Stage, Status


def error_outcome(error: RollyardError) -> Status:
    """Return the status for an error. InfraFailed: the task is not at fault, so the server may start another attempt."""
    match error:
        case ImageNotFound() | TaskError() | EndpointRefused() | ContextExceeded():
            return Status.FAILED
        case SandboxError() | EndpointError() | NodeFault():
            return Status.INFRA_FAILED
        case _:
            return Status.FAILED


def failed_outcome(so_far: Outcome | None, stage: Stage, error: RollyardError, node: str) -> Outcome:
    """Build an outcome without a reward. The outcome keeps the tokens of `so_far`, for inspection."""
    base = so_far or Outcome(status=Status.FAILED, node=node)
    rollout_error = RolloutError(stage=stage, reason=type(error).__name__, message=str(error))
    return evolve(base, status=error_outcome(error), reward=None, error=rollout_error)


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
