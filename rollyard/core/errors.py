"""All of Rollyard's errors, in one tree.

RollyardError
├── ApiError                 has an HTTP code, and a reason that clients can branch on
│   ├── BadRequest           400  the request cannot be read
│   ├── Unauthorized         401  the token is missing, wrong or expired
│   ├── Forbidden            403  the token's role may not do this
│   ├── NotFound             404
│   ├── MethodNotAllowed     405
│   ├── RequestTimeout       408  the body stopped arriving
│   ├── Conflict             409  the request contradicts what is stored, such as an object changed since it was read
│   │   ├── AlreadyExists    409
│   │   └── Fenced           409  the caller's lease or binding is void, or another process has it; the caller must stop
│   ├── Expired              410  changes or results that the request names are no longer stored
│   ├── TooLarge             413
│   ├── UnsupportedMediaType 415
│   ├── Invalid              422  the message names the wrong fields and what they may contain
│   │   ├── FileMissing      422  a file that every model's folder has is missing; perhaps it has not been copied yet
│   │   └── TemplateUnusable 422  a model's tokenizer or chat template cannot be used for any conversation
│   ├── Incompatible         426  the two releases do not work together; the message names the release to update
│   ├── TooManyRequests      429
│   └── Unavailable          503  try again later (a full disk, a server that is stopping)
│       ├── Damaged          503  stored data is not what was stored
│       └── Superseded       503  another server has the data folder now; this one must stop
├── SlurmError
│   ├── SlurmUnreachable     Slurm did not answer, so the state of jobs and nodes is unknown
│   └── SubmitRefused        Slurm refused the submit: the kind of the refusal, and Slurm's words
├── NodeFault                this node failed: the rollout is retried, and ends InfraFailed after the last attempt
│   └── StageTimeout         a stage's time ran out, and the agent is not the cause
├── SandboxError             the sandbox failed: the rollout is retried, and ends InfraFailed after the last attempt
│   ├── SandboxStartFailed
│   ├── SandboxLost          the sandbox ended during a rollout
│   │   └── SandboxSilent    the sandbox lives, but its sandbox agent fails or does not answer: nobody knows why
│   ├── ImageUnavailable     the sandbox image cannot be had now: the rollout waits, and the attempt does not count
│   │   └── ImageNotReady    a node still pulls the image, or will pull it soon
│   └── ImageNotFound        the name of the sandbox image can never work: the rollout ends Failed, without a retry
├── SandboxBroken            it is certain that the agent has broken its own sandbox: the rollout is scored, with 0
├── EndpointError            a model server failed; the rollout continues at another model server
│   ├── EndpointLost         connection, 5xx or time-out
│   │   └── StreamLost       carries the tokens received so far (tokens/sampled_tokens.py)
│   ├── EndpointRefused      4xx other than 401, 403, 408 and 429: the request itself is wrong; no retry
│   │   └── AnswerRefused    the endpoint's answer cannot be used for training, so Rollyard refuses it
│   └── RoleModelFailed      a model that a task handler calls by its role, such as a judge, failed: InfraFailed after retries
├── RoleModelAttacked        it is certain that the agent's text made a judge unusable: the rollout is scored, with 0
├── NoEndpoint               no endpoint was ready in time: the rollout is handed back, and the attempt does not count
├── ResumeFailed             a rollout cannot go on after its saved turns: it begins again, in the same attempt
├── AllocationEnds           the allocation ends soon: the rollout is handed back, and goes on in another one
├── NoReward                 a rollout ended without a reward; its trainer counts the session as failed (trainers/verl)
├── ImageBuildFailed         an image cannot be built; the message names the line of the Dockerfile and what to change
├── NoProgress               a pool cannot reach the awaited condition until somebody changes something
├── EngineFailed             a model server cannot be kept alive (engine/process/child_process.py)
│   └── EngineRemains        processes of an ended engine may still run (engine/process/owned_engine.py)
├── GatewayError             an error in the format of OpenAI's or Anthropic's API (gateway/requests/call_errors.py)
├── ContextExceeded          the conversation does not fit the model: Truncated, or Failed if no token was sampled
│   └── PromptTooLong        the endpoint reported that the prompt does not fit (tokens/streamed_response.py)
└── TaskError                the task or its evaluator is wrong: Failed
    ├── SnapshotUnusable     the rollout's sandbox cannot be started from its snapshot
    │   └── SnapshotRefused  the sandbox cannot write a file of the snapshot
    ├── NoParserFits         no parser of tool calls fits the model's chat template (tokens/tool_calls/parser_choice.py)
    ├── UnknownParser        no parser of test logs has this name; the message has the names (tasks/swe/log_parsers)
    ├── NothingSampled       RUN ended without a sampled token, so there is nothing to score
    ├── ToolCallsUnreadable  the task has tools, but the calls of the model would not be read
    ├── RoleBudgetUsed       a task handler's calls of a role's model reached a limit: in RUN the conversation ends Truncated
    └── HandlerFailed        the task handler, or its environment, raised an exception or returned a wrong value

Outside the tree are exceptions that do not leave their folder. The folder's own code turns each of them into a result,
a reason or an error of the tree. The names of these exceptions, by folder:

- engine: EndRequested
- engine/proxy: ProxyClosed
- engine/weights: ControlFailed, WrongWeights
- image_builds: BadMode, BadMount, BadText, NoSuchFile
- images: BadFolderConfig, BadManifest, BrokenArchive, BrokenFlatLayer, BrokenLayer, ChildFailed, DiskFull,
  IncompleteFlatLayer, NoWhiteouts, TooBig, UnusableCredentials, UnusableFile
- sandbox: NoDelegation; ProgramRefused, which node/attachments.py answers
- tasks/scoring: BadReference, UnreadableExpression, Unprepared; also CheckerKilled, the only one here that leaves its
  folder: task handlers catch it
- tasks/harbor: UnreadableReward
- tasks/rows: RowRefused
- slurm/rest: NotJson
- tokens/tool_calls: MalformedCall, NoCall
- sandbox_agent, which imports no other part of Rollyard: BrokenChanges, EditError, ImageDiffers, KernelUnusable, ShellEnded,
  TooManyChanges
- private ones, with a leading underscore

`scripts/check_names.py` compares both lists with the code.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class RollyardError(Exception):
    """Root of all errors; `str()` is a sentence for a person."""

    ending: ClassVar[str | None] = None
    """Public reason of a rollout that ends by this error: the name of a row in `kinds/failure_table.py`. None if no rollout
    ends by it."""


@dataclass(frozen=True)
class Cause:
    """One wrong field: `field` is a path such as `spec.stages.run.workers.max`."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiError(RollyardError):
    code = 500
    reason = "InternalError"

    def __init__(self, message: str, *, causes: Sequence[Cause] = (), retry_after: int | None = None) -> None:
        super().__init__(message)
        self.causes = tuple(causes)
        self.retry_after = retry_after
        """Seconds after which a retry may succeed; None if the time is unknown or a retry is useless."""


class BadRequest(ApiError):
    code, reason = 400, "BadRequest"


class Unauthorized(ApiError):
    code, reason = 401, "Unauthorized"


class Forbidden(ApiError):
    code, reason = 403, "Forbidden"


class NotFound(ApiError):
    code, reason = 404, "NotFound"


class MethodNotAllowed(ApiError):
    code, reason = 405, "MethodNotAllowed"


class RequestTimeout(ApiError):
    code, reason = 408, "RequestTimeout"


class Conflict(ApiError):
    code, reason = 409, "Conflict"


class AlreadyExists(Conflict):
    reason = "AlreadyExists"


class Fenced(Conflict):
    reason = "Fenced"


class Expired(ApiError):
    code, reason = 410, "Expired"


class TooLarge(ApiError):
    code, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    code, reason = 415, "UnsupportedMediaType"


class Invalid(ApiError):
    code, reason = 422, "Invalid"


class FileMissing(Invalid):
    pass


class TemplateUnusable(Invalid):
    ending = "TemplateUnusable"


class Incompatible(ApiError):
    code, reason = 426, "Incompatible"


class TooManyRequests(ApiError):
    code, reason = 429, "TooManyRequests"


class Unavailable(ApiError):
    code, reason = 503, "ServiceUnavailable"


class Damaged(Unavailable):
    """Stored data is not what was stored."""


class Superseded(Unavailable):
    pass


def error_from_reason(
    code: int, reason: str, message: str, causes: Sequence[Cause] = (), retry_after: int | None = None
) -> ApiError:
    """Return the error that a `Status` body describes. If the reason is unknown, the HTTP code selects the error."""
    classes = (
        BadRequest, Unauthorized, Forbidden, NotFound, MethodNotAllowed, RequestTimeout, Conflict, AlreadyExists, Fenced,
        Expired, TooLarge, UnsupportedMediaType, Invalid, Incompatible, TooManyRequests, Unavailable,
    )  # fmt: skip
    for cls in classes:
        if cls.reason == reason:
            return cls(message, causes=causes, retry_after=retry_after)
    for cls in classes:
        if cls.code == code:
            return cls(message, causes=causes, retry_after=retry_after)
    return ApiError(message, causes=causes, retry_after=retry_after)


class SlurmError(RollyardError):
    pass


class SlurmUnreachable(SlurmError):
    pass


class Refusal(StrEnum):
    """Kind of Slurm's refusal of a submit."""

    LIMIT = "Limit"
    """A limit is reached, or the submit exceeds a limit. The same submit, or a smaller one, may be accepted later."""
    ARRAY = "Array"
    """Slurm does not accept this job array. A smaller one may be accepted."""
    FINAL = "Final"
    """The submit will be refused until somebody changes it, or the site."""


class SubmitRefused(SlurmError):
    def __init__(self, message: str, kind: Refusal = Refusal.FINAL) -> None:
        super().__init__(message)
        self.kind = kind


class NodeFault(RollyardError):
    ending = "NodeFault"


class StageTimeout(NodeFault):
    ending = "StageTimeout"


class SandboxError(RollyardError):
    ending = "SandboxError"


class SandboxStartFailed(SandboxError):
    ending = "SandboxStartFailed"


class SandboxLost(SandboxError):
    ending = "SandboxLost"


class SandboxSilent(SandboxLost):
    ending = "SandboxSilent"


class ImageUnavailable(SandboxError):
    ending = "ImageUnavailable"

    def __init__(self, image: str, why: str, *, permanent: bool = False, registry_down: bool = False) -> None:
        super().__init__(f"the image {image} cannot be used now: {why}")
        self.image = image
        """Name of the image in normal form."""
        self.why = why
        self.permanent = permanent
        """True: somebody must change the image or the pool. False: the fault may pass by itself."""
        self.registry_down = registry_down
        """True: the image's registry does not answer at all."""


class ImageNotReady(ImageUnavailable):
    pass


class ImageNotFound(SandboxError):
    ending = "ImageNotFound"


class SandboxBroken(RollyardError):
    ending = "SandboxBroken"


class EndpointError(RollyardError):
    ending = "EndpointError"


class EndpointLost(EndpointError):
    ending = "EndpointLost"


class EndpointRefused(EndpointError):
    ending = "EndpointRefused"


class AnswerRefused(EndpointRefused):
    ending = "AnswerRefused"


class RoleModelFailed(EndpointError):
    ending = "RoleModelFailed"


class RoleModelAttacked(RollyardError):
    ending = "RoleModelAttacked"


class NoEndpoint(RollyardError):
    pass


class NoReward(RollyardError):
    pass


class ImageBuildFailed(RollyardError):
    """An image cannot be built from a Dockerfile."""


class NoProgress(RollyardError):
    pass


class ContextExceeded(RollyardError):
    ending = "ContextExceeded"

    def __init__(self, message: str, *, context: int | None = None, tokens: int | None = None) -> None:
        super().__init__(message)
        self.context = context
        """Number of tokens that fit, answer included; None if unknown."""
        self.tokens = tokens
        """Number that the prompt's tokens reach at least; None if the prompt was tokenised."""


class TaskError(RollyardError):
    ending = "TaskError"


class ResumeFailed(RollyardError):
    """Saved turns, or their snapshot, cannot be used."""


class AllocationEnds(RollyardError):
    """The message is the reason of the hand-back."""


class SnapshotUnusable(TaskError):
    ending = "SnapshotUnusable"


class SnapshotRefused(SnapshotUnusable):
    ending = "SnapshotRefused"


class UnknownParser(TaskError):
    ending = "TaskError"


class NothingSampled(TaskError):
    ending = "NothingSampled"


class ToolCallsUnreadable(TaskError):
    ending = "ToolCallsUnreadable"


class RoleBudgetUsed(TaskError):
    ending = "RoleBudgetUsed"


class HandlerFailed(TaskError):
    ending = "HandlerFailed"


def connection_failure_text(error: BaseException) -> str:
    """Return the name and the cause of a connection error on one line.

    aiohttp's own text is longer: it also has the host, the port and the value of the `ssl` argument.
    """
    cause = getattr(error, "os_error", error)
    if isinstance(cause, OSError) and (cause.errno or 0) > 0 and not hasattr(cause, "reason"):
        text = os.strerror(cause.errno or 0)
    else:
        text = " ".join(str(cause).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
