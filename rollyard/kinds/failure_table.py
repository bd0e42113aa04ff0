"""The failure table: every way in which a rollout can end, and what follows from it. Pure.

The node agent takes the status and the reason of an error from the table, `step` those of the ends that the server itself
decides. Reasons are public: a row's reason stays, whatever the class of its error is called. docs/failures.md shows the
table, and `GET /v1/endings` returns it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from rollyard.core.errors import RollyardError
from rollyard.kinds.rollout import RolloutError, Stage, Status


class Fault(StrEnum):
    """Party whose fault the end is."""

    NOBODY = "Nobody"
    AGENT = "Agent"
    """The policy, or the command that it drives."""
    TASK = "Task"
    """The task, its handler or evaluator, or the request."""
    INFRASTRUCTURE = "Infrastructure"
    """Rollyard, the node, the site or a model server."""
    CALLER = "Caller"
    """Somebody no longer needs the rollout, or its weights have changed."""


class Again(StrEnum):
    """Retry before the end is final."""

    NO = "No"
    COUNTED = "Counted"
    """A new attempt, until the pool's `maxAttempts` are used up."""
    FREE = "Free"
    """The rollout is queued again without a counted attempt, up to a limit of its own."""


@dataclass(frozen=True, slots=True)
class Ending:
    """One way in which a rollout can end."""

    reason: str
    """`error.reason` of the rollout. A scored rollout has no `error`; its row has a name that is used here alone."""
    status: Status
    fault: Fault
    again: Again
    stages: tuple[Stage, ...]
    """Stages in which a rollout can end in this way."""
    harbor: str | None
    """Name of such an end in Harbor (`FailureCause` of 0.25); None if it has none."""
    nemo_gym: str | None
    """Name of such an end in NeMo Gym (`failure_kinds` of 0.7); None if it has none."""
    meaning: str

    @property
    def trainable(self) -> bool:
        """Whether the rollout keeps a reward, on which a trainer may train."""
        return self.status.scored

    def error(self, stage: Stage, message: str) -> RolloutError:
        return RolloutError(stage=stage, reason=self.reason, message=message)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"trainable": self.trainable}


_DONE, _CUT = Status.COMPLETED, Status.TRUNCATED
_FAIL, _INFRA, _CANCEL = Status.FAILED, Status.INFRA_FAILED, Status.CANCELLED
_NO, _COUNTED, _FREE = Again
_NOBODY, _AGENT, _TASK, _OURS, _CALLER = Fault
_INIT, _RUN, _EVAL = ((stage,) for stage in (Stage.INIT, Stage.RUN, Stage.EVAL))
_ALL = tuple(Stage)

# ends that the server decides, or that it has to recognise
IMAGE_UNAVAILABLE: Final = Ending(
    "ImageUnavailable", _INFRA, _OURS, _FREE, _ALL, "sandbox_failed", "provider_unavailable",
    "the sandbox image could not be had for longer than `images.giveUpAfterSeconds`",
)  # fmt: skip
LOST_TOO_OFTEN: Final = Ending(
    "LostTooOften", _INFRA, _OURS, _FREE, _ALL, "harbor_failed", "kill_shaped",
    "the rollout's lease was lost 6 times in a row, the last times on a node agent without other work",
)  # fmt: skip
NODE_AGENT_ERROR: Final = Ending(
    "NodeAgentError", _INFRA, _OURS, _COUNTED, _ALL, "harbor_failed", "agent_run_error",
    "the rollout caused an error in the node agent's own code",
)  # fmt: skip
NO_FINITE_REWARD: Final = Ending(
    "NoReward", _FAIL, _TASK, _NO, _EVAL, "verifier_failed", "verifier_error",
    "the evaluator's reward is not a finite number",
)  # fmt: skip
NOTHING_SAMPLED: Final = Ending(
    "NothingSampled", _FAIL, _TASK, _NO, _ALL, "unclassified", "agent_run_error",
    "the rollout ended without a sampled token",
)  # fmt: skip
RESULT_REFUSED: Final = Ending(
    "ResultRefused", _FAIL, _TASK, _NO, _ALL, "harbor_failed", "persistence_failed",
    "the server refused the result, for example because it is too large",
)  # fmt: skip
STAGE_TIMEOUT: Final = Ending(
    "StageTimeout", _INFRA, _OURS, _COUNTED, _ALL, "sandbox_failed", None,
    "a stage's time ran out, and the agent is not the cause",
)  # fmt: skip
CANCELLED: Final = Ending(
    "Cancelled", _CANCEL, _CALLER, _NO, _ALL, "cancelled", "cancelled",
    "somebody cancelled the rollout",
)  # fmt: skip
POOL_DELETED: Final = Ending(
    "PoolDeleted", _CANCEL, _CALLER, _NO, _ALL, "cancelled", "shutdown",
    "the RolloutPool was deleted",
)  # fmt: skip
NOT_NEEDED: Final = Ending(
    "NotNeeded", _CANCEL, _CALLER, _NO, _ALL, "cancelled", "cancelled",
    "the rollout's group can no longer become informative",
)  # fmt: skip
BATCH_ENDED: Final = Ending(
    "BatchEnded", _CANCEL, _CALLER, _NO, _ALL, "cancelled", "cancelled",
    "the rollout's batch ended before the rollout",
)  # fmt: skip
DATASET_DELETED: Final = Ending(
    "DatasetDeleted", _CANCEL, _CALLER, _NO, _ALL, "cancelled", "cancelled",
    "the rollout's dataset was deleted",
)  # fmt: skip
WEIGHTS_STALE: Final = Ending(
    "WeightsStale", _CANCEL, _CALLER, _FREE, _INIT + _RUN, "cancelled", "cancelled",
    "the weights that began the rollout became older than `max_staleness` allows",
)  # fmt: skip
WEIGHTS_MIXED: Final = Ending(
    "WeightsMixed", _CANCEL, _CALLER, _FREE, _RUN, "cancelled", "cohort_incomplete",
    "the rollout was sampled from another weights version than its group",
)  # fmt: skip
WEIGHTS_GONE: Final = Ending(
    "WeightsVersionGone", _CANCEL, _CALLER, _FREE, _INIT + _RUN, "cancelled", "cohort_incomplete",
    "no endpoint serves the weights version of the rollout's group any more",
)  # fmt: skip

ENDINGS: Final[dict[str, Ending]] = {
    row.reason: row
    for row in (
        Ending("Completed", _DONE, _NOBODY, _NO, _EVAL, None, None, "the agent ended its work, which was scored"),
        Ending(
            "Truncated", _CUT, _AGENT, _NO, _EVAL, "agent_exhausted_budget", None,
            "a limit ended the agent's work, which was scored; `cut_short` names the limit",
        ),
        Ending(
            "SandboxBroken", _DONE, _AGENT, _NO, _EVAL, None, None,
            "the agent has certainly broken its own sandbox: reward 0, and the metric `broken_sandbox`. Truncated if a "
            "limit also ended its work",
        ),
        Ending(
            "RoleModelAttacked", _DONE, _AGENT, _NO, _RUN + _EVAL, None, None,
            "the agent's text has certainly made a model that scores it unusable: reward 0, and the metric "
            "`attacked_model`. Truncated if a limit also ended its work",
        ),
        Ending(
            "TaskError", _FAIL, _TASK, _NO, _ALL, "verifier_failed", "verifier_error",
            "the task, its handler, its evaluator or the request is wrong",
        ),
        Ending(
            "HandlerFailed", _FAIL, _TASK, _NO, _ALL, "verifier_failed", "verifier_error",
            "the task handler, or its environment, raised an exception or returned a wrong value",
        ),
        Ending(
            "RoleBudgetUsed", _FAIL, _TASK, _NO, _INIT + _EVAL, "verifier_failed", "verifier_error",
            "the handler's calls of a role's model reached `maxCalls` or `maxTokens` of the pool's `roles`",
        ),
        NO_FINITE_REWARD,
        NOTHING_SAMPLED,
        Ending(
            "ContextExceeded", _FAIL, _TASK, _NO, _RUN, "agent_exhausted_budget", "agent_request_failed",
            "the prompt does not fit the model, so no token was sampled",
        ),
        Ending(
            "PromptTooLong", _FAIL, _TASK, _NO, _RUN, "agent_exhausted_budget", "agent_request_failed",
            "the model server reported that the prompt does not fit, before a token was sampled",
        ),
        Ending(
            "ToolCallsUnreadable", _FAIL, _TASK, _NO, _RUN, "model_provider_failed", "agent_request_failed",
            "the task has tools, but the calls of the model would not be read",
        ),
        Ending(
            "NoParserFits", _FAIL, _TASK, _NO, _INIT + _RUN, "model_provider_failed", "agent_request_failed",
            "no parser of tool calls fits the model's chat template",
        ),
        Ending(
            "TemplateUnusable", _FAIL, _TASK, _NO, _INIT + _RUN, "model_provider_failed", "agent_request_failed",
            "the model's tokenizer or chat template cannot be used",
        ),
        Ending(
            "EndpointRefused", _FAIL, _TASK, _NO, _RUN, "model_provider_failed", "agent_request_failed",
            "the model server refused the request as wrong",
        ),
        Ending(
            "AnswerRefused", _FAIL, _TASK, _NO, _RUN, "model_provider_failed", "agent_request_failed",
            "the model server's answer cannot be used for training",
        ),
        Ending(
            "ImageNotFound", _FAIL, _TASK, _NO, _ALL, "sandbox_failed", "provider_unavailable",
            "the name of the sandbox image can never work",
        ),
        Ending(
            "SnapshotUnusable", _FAIL, _TASK, _NO, _ALL, "sandbox_failed", "session_lost",
            "the sandbox cannot be started from its snapshot, or the rollout cannot go on from another one",
        ),
        Ending(
            "SnapshotRefused", _FAIL, _TASK, _NO, _INIT + _EVAL, "sandbox_failed", "session_lost",
            "the sandbox cannot write a file of the snapshot",
        ),
        RESULT_REFUSED,
        Ending(
            "SandboxError", _INFRA, _OURS, _COUNTED, _ALL, "sandbox_failed", "provider_unavailable",
            "the sandbox failed",
        ),
        Ending(
            "SandboxStartFailed", _INFRA, _OURS, _COUNTED, _ALL, "sandbox_failed", "provider_unavailable",
            "the sandbox could not be started",
        ),
        Ending(
            "SandboxLost", _INFRA, _OURS, _COUNTED, _ALL, "sandbox_failed", "session_lost",
            "the sandbox ended during the rollout",
        ),
        Ending(
            "SandboxSilent", _INFRA, _OURS, _COUNTED, _ALL, "sandbox_failed", "session_lost",
            "the sandbox lives, but its sandbox agent fails or does not answer",
        ),
        IMAGE_UNAVAILABLE,
        Ending(
            "NodeFault", _INFRA, _OURS, _COUNTED, _ALL, "sandbox_failed", "provider_unavailable",
            "the node failed, for example because the memory of the allocation ran out",
        ),
        STAGE_TIMEOUT,
        NODE_AGENT_ERROR,
        LOST_TOO_OFTEN,
        Ending(
            "EndpointError", _INFRA, _OURS, _COUNTED, _RUN, "model_provider_failed", "transport_unreachable",
            "a model server failed",
        ),
        Ending(
            "EndpointLost", _INFRA, _OURS, _COUNTED, _RUN, "model_provider_failed", "transport_peer_drop",
            "the connection to a model server failed, or the model server answered with an error of its own",
        ),
        Ending(
            "StreamLost", _INFRA, _OURS, _COUNTED, _RUN, "model_provider_failed", "transport_peer_drop",
            "a model server failed within an answer",
        ),
        Ending(
            "RoleModelFailed", _INFRA, _OURS, _COUNTED, _ALL, "model_provider_failed", "transport_unreachable",
            "a model that the task handler calls by its role, such as a judge, was down, too slow, or answered in a wrong "
            "form",
        ),
        CANCELLED,
        POOL_DELETED,
        NOT_NEEDED,
        BATCH_ENDED,
        DATASET_DELETED,
        WEIGHTS_STALE,
        WEIGHTS_MIXED,
        WEIGHTS_GONE,
    )
}  # fmt: skip
"""Reason -> row."""


def ending_of(error: RollyardError) -> Ending:
    """Return the row of an error that ends an attempt. An error without a row of its own counts as a TaskError."""
    return ENDINGS[error.ending or "TaskError"]
