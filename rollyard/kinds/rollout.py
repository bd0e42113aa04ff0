"""Rollouts as trainers see them: request, record, trajectory. snake_case, because trainers are Python.

A rollout is one accepted request for one trajectory of one task. It may take several attempts and ends in exactly one
terminal record.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from rollyard.kinds.base import NAME_PATTERN, Wire
from rollyard.kinds.weights import VERSION_PATTERN

EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"
RolloutId = Annotated[str, Field(pattern=ID_PATTERN, max_length=128)]

MAX_MESSAGE_CHARS = 4000


class Stage(StrEnum):
    """The fixed pipeline."""

    INIT = "INIT"
    RUN = "RUN"
    EVAL = "EVAL"


class Status(StrEnum):
    """`Queued` and `Running` are on the way; the others are terminal."""

    QUEUED = "Queued"
    RUNNING = "Running"
    COMPLETED = "Completed"
    TRUNCATED = "Truncated"
    FAILED = "Failed"
    INFRA_FAILED = "InfraFailed"
    CANCELLED = "Cancelled"

    @property
    def terminal(self) -> bool:
        return self not in (Status.QUEUED, Status.RUNNING)

    @property
    def scored(self) -> bool:
        """Only these carry a reward; every other terminal status has `reward: null`."""
        return self in (Status.COMPLETED, Status.TRUNCATED)


NOT_TO_CHOOSE = frozenset(
    [
        *(
            "model",
            "prompt",
            "prompt_embeds",
            "token_ids",
            "stream",
            "stream_options",
            "request_id",
            "return_token_ids",
        ),
        *("n", "best_of", "use_beam_search", "echo", "suffix", "prompt_logprobs", "truncate_prompt_tokens"),
        *("detokenize", "output_kind", "output_mode", "sampling_params"),
    ]
)
"""Parameters of engines that a turn's exactness hangs on."""


class Sampling(Wire):
    """How the policy samples, for every turn."""

    model_config = ConfigDict(allow_inf_nan=False)

    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus; 1 leaves the distribution as it is."""
    top_k: int | None = Field(default=None, ge=1)
    """Most likely tokens to choose from; null for all."""
    seed: int | None = None
    """Turn k of sample i uses a seed derived from it; null draws freely."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens of one turn."""
    min_tokens: int | None = Field(default=None, ge=0)
    """Least tokens of one turn before it may end itself."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Least probability of a token, as a share of the most likely one's."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Taken off the logit of each token that the turn has already."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """The same, once for each time."""
    repetition_penalty: float | None = Field(default=None, gt=0)
    """Divides the logits of tokens that the prompt or the turn has already."""
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = None
    """Token id -> what is added to its logit."""
    allowed_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, min_length=1)
    """The only tokens to choose from."""
    bad_words: list[Annotated[str, Field(min_length=1)]] | None = None
    """Words that are never completed."""
    stop: list[Annotated[str, Field(min_length=1)]] | None = None
    """Texts that end a turn, which keeps the tokens up to there."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = []
    """Further tokens that end a turn, beside the model's own."""
    logprobs: Literal["raw", "processed"] = "raw"
    """Of the model's own distribution, or of the one that was drawn from, behind temperature, penalties and truncation.
    An engine gives one of the two: `engine.vllm.logprobsMode` of the pool."""
    extra: dict[str, JsonValue] = {}
    """Further parameters of the engine, passed on as they are."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"`min_tokens` must be at most `max_tokens` ({self.max_tokens})")
        if known := sorted(self.extra.keys() & type(self).model_fields.keys()):
            raise ValueError(f"`extra` is for other parameters; set `{known[0]}` beside it")
        if ours := sorted(self.extra.keys() & NOT_TO_CHOOSE):
            raise ValueError(f"`extra` cannot hold `{ours[0]}`: the token path sets it")
        return self


class AgentSpec(Wire):
    """What turns a task into a trajectory: the built-in loop, or a command that brings its own."""

    type: Literal["loop", "command"] = "loop"
    """`command` runs a harness inside the sandbox; its model calls go to a gateway there and become the trajectory."""
    command: str | None = Field(default=None, min_length=1, max_length=65536)
    """Bash, run in /workspace of the sandbox. OPENAI_BASE_URL and ANTHROPIC_BASE_URL with their keys name the gateway,
    ROLLYARD_PROMPT_FILE holds what the task asks, ROLLYARD_SYSTEM_PROMPT_FILE what the built-in loop would tell the model."""
    env: dict[EnvName, str] = {}
    """Further environment of the command."""
    sampling: Literal["rollout", "harness"] = "rollout"
    """Whose sampling parameters hold for a command's calls: the rollout's, or the harness's where it names some."""
    max_turns: int = Field(default=20, ge=1, le=1000)
    """Model calls; reaching it ends the rollout Truncated. A command's further calls are refused."""
    tool_timeout_seconds: float = Field(default=30.0, gt=0)
    """Most time of one tool call; longer is a tool result that says so."""
    tool_parser: str | None = Field(default=None, min_length=1, max_length=64)
    """Form in which the model writes tool calls, such as hermes or llama3_json; left out, the model's chat template
    shows it."""

    @model_validator(mode="after")
    def _a_command_has_one(self) -> Self:
        if (self.type == "command") != (self.command is not None):
            raise ValueError("give `command` together with `type: command`, and leave it out of the built-in loop")
        if self.type == "loop" and (self.env or self.sampling != "rollout"):
            raise ValueError("`env` and `sampling` are for `type: command`")
        return self


class Budgets(Wire):
    """Limits of this rollout; each can only be tighter than the pool's."""

    init_seconds: float | None = Field(default=None, gt=0)
    """INIT; running over is an infrastructure failure."""
    run_seconds: float | None = Field(default=None, gt=0)
    """RUN; running over ends the rollout Truncated, and what it did is scored."""
    eval_seconds: float | None = Field(default=None, gt=0)
    """EVAL."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of the conversation; running over ends the rollout Truncated."""


class Task(Wire):
    """A dataset item; `kind` picks the handler, the other fields are the handler's."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str = Field(min_length=1, max_length=64)

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class WeightsDemand(Wire):
    """What one rollout asks of the weights once it has begun."""

    same: bool = False
    """As the rest of its group."""
    max_staleness: int | None = None


class RolloutRequest(Wire):
    """What a client submits; n > 1 makes one group with sample_index 0..n-1."""

    id: RolloutId | None = None
    """Caller's id. The same id with the same body attaches to the rollout there is; with another body it is a 409.
    With n > 1 it names the group, and each rollout is called `<id>.<sample_index>`."""
    pool: str = Field(pattern=NAME_PATTERN)
    """RolloutPool to run in."""
    task: Task
    n: int = Field(default=1, ge=1, le=1024)
    """Rollouts of this task."""
    group: RolloutId | None = None
    """Name of the group; made up when n > 1 and it is left out."""
    agent: AgentSpec = AgentSpec()
    sampling: Sampling = Sampling()
    budgets: Budgets = Budgets()
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher goes first."""
    mode: Literal["train", "eval"] = "train"
    """Kept with the trajectory."""
    min_weights_version: str | None = Field(default=None, pattern=VERSION_PATTERN, max_length=64)
    """Sampled by nothing older than this version of the policy's weights; it waits in the queue until there is such an
    endpoint, also where the version is yet to come."""
    group_version: Literal["any", "same"] = "any"
    """same: all rollouts of the group are sampled from one version throughout, that of the first to begin. When that version is
    gone, a group of which nothing is sampled begins anew; else what is left of it ends Cancelled, and the group is smaller."""
    max_staleness: int | None = Field(default=None, ge=0)
    """By how many versions the one that a rollout began with may fall behind the pool's; further, and it begins anew."""

    @model_validator(mode="after")
    def _one_version_of_what(self) -> Self:
        if self.group_version == "same" and self.n == 1 and self.group is None:
            raise ValueError('`group_version: "same"` is about a group; give `n` or `group`, or leave it out')
        return self

    @property
    def weights(self) -> WeightsDemand | None:
        """What it asks of the weights once it has begun; None for nothing."""
        demand = WeightsDemand(same=self.group_version == "same", max_staleness=self.max_staleness)
        return demand if demand != WeightsDemand() else None

    @model_validator(mode="after")
    def _ids(self) -> Self:
        if self.n > 1 and self.id is not None and self.group is not None and self.group != self.id:
            raise ValueError("with n > 1 the id names the group; leave out `group` or give both the same value")
        return self


class RolloutError(Wire):
    """Why a rollout has no reward."""

    stage: Stage | None = None
    reason: str
    """CamelCase word to branch on, such as SandboxLost."""
    message: str

    @field_validator("message")
    @classmethod
    def _storable(cls, message: str) -> str:
        """Others' words stand in it: of any length, and with halves of surrogate pairs, which no JSON can hold."""
        return message[:MAX_MESSAGE_CHARS].encode(errors="backslashreplace").decode()


class Timings(Wire):
    """Seconds in each stage of the last attempt; null where it was not reached."""

    queued: float | None = None
    init: float | None = None
    run: float | None = None
    eval: float | None = None


class Segment(Wire):
    """One unbroken token sequence. The four arrays have one length.

    `loss_mask[i]` is 1 where the token was sampled by the policy; `logprobs[i]` (natural log; of the model's own
    distribution, or of the one drawn from where the request's `sampling.logprobs` is `processed`) and
    `weights_version[i]` are null wherever it was not.
    """

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float | None]
    weights_version: list[str | None]
    prompt_length: int
    """Tokens before the first sampled one."""
    extras: dict[str, Any] = {}

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        n = len(self.token_ids)
        if not (n == len(self.loss_mask) == len(self.logprobs) == len(self.weights_version)):
            raise ValueError("token_ids, loss_mask, logprobs and weights_version must have one length")
        for sampled, logprob, version in zip(self.loss_mask, self.logprobs, self.weights_version, strict=True):
            if bool(sampled) != (logprob is not None) or bool(sampled) != (version is not None):
                raise ValueError("logprobs and weights_version must be null exactly where loss_mask is 0")
        return self


def sampled_tokens(segments: Sequence[Segment]) -> int:
    """Count the sampled tokens, which are what there is to learn from."""
    return sum(sum(segment.loss_mask) for segment in segments)


class Turn(Wire):
    """One model call and the tool results that followed; text is for people, the tokens are in the segments."""

    segment: int
    prompt_length: int
    response_length: int
    text: str
    finish_reason: str
    tool_calls: list[dict[str, Any]] = []
    tool_results: list[str] = []
    timings: dict[str, float] = {}
    """Seconds: `model`, `tools`."""


class Outcome(Wire):
    """What a node agent found out about one rollout; the server adds identity and stores it."""

    status: Literal[Status.COMPLETED, Status.TRUNCATED, Status.FAILED, Status.INFRA_FAILED, Status.CANCELLED]
    reward: float | None = None
    metrics: dict[str, float] = {}
    segments: list[Segment] = []
    turns: list[Turn] = []
    timings: Timings = Timings()
    breaks: dict[str, int] = {}
    """Breaks of the token prefix by cause."""
    endpoint: str | None = None
    node: str | None = None
    error: RolloutError | None = None

    @model_validator(mode="after")
    def _honest(self) -> Self:
        if self.reward is not None and not self.status.scored:
            raise ValueError(f"a rollout that ended {self.status} has no reward")
        return self


class RunResult(Wire):
    """What RUN ends with: the outcome so far and the artifact that EVAL scores, on any node, again if need be."""

    outcome: Outcome
    artifact: dict[str, str]
    """Name -> text or base64, as the handler's `collect` made it; bounded by the server."""


class RolloutView(Wire):
    """A rollout without its trajectory, as listed."""

    id: str
    namespace: str
    pool: str
    task_kind: str
    group: str | None
    sample_index: int
    mode: str
    priority: int
    status: Status
    stage: Stage | None
    attempt: int
    reward: float | None
    error: RolloutError | None
    node: str | None
    endpoints: dict[str, str]
    created_at: float
    """Unix seconds."""
    finished_at: float | None
    cursor: int | None
    """Position in the stream of terminal records; null until terminal."""
    weights_version: str | None = None
    """Of the policy when its present or last attempt began."""
    outdated: int = 0
    """Attempts that were given up because their weights had become too old; they count as no retries."""
    waiting: str | None = None
    """While it is queued: what it waits for and since when, as `Word: sentence (since ...)`. The word is from a fixed set."""


class Trajectory(Wire):
    """The whole result: the contract with trainers."""

    id: str
    namespace: str = "default"
    group: str | None
    sample_index: int
    attempt: int
    mode: str = "train"
    status: Status
    reward: float | None
    metrics: dict[str, float]
    task: Task
    segments: list[Segment]
    turns: list[Turn]
    timings: Timings
    breaks: dict[str, int] = {}
    endpoint: str | None
    node: str | None
    error: RolloutError | None
