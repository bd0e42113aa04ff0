"""Rollouts for trainers: request and view. The fields are snake_case, because trainers are Python programs.

A rollout is one accepted request for one trajectory of one task. It may take several attempts. Each rollout ends in
exactly one terminal record. One file, because a view repeats the fields of its request.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from rollyard.kinds.base import NAME_PATTERN, ReasonText, WireModel, shared
from rollyard.kinds.task import Task
from rollyard.kinds.weights import VERSION_PATTERN

EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"
RolloutId = Annotated[str, Field(pattern=ID_PATTERN, max_length=128)]

MAX_MESSAGE_CHARS = 4000
MAX_NOTES_CHARS = 2000
MAX_ARTIFACT_BYTES = 4 << 20
"""Greatest length of a rollout's artifact: all its texts, in UTF-8, and bytes."""
IN_QUEUE, PARKED, PREPARING = "InQueue", "Parked", "Preparing"
"""Words of `RolloutView.waiting`. InQueue: the rollout waits only for its turn, and its position changes often. Parked:
the rollout waits in RUN, for a model server. Preparing: the rollout waits in INIT, because its node makes something once."""


CHECK: Final = "check"
"""Mode of rollouts that check a task, or score an old artifact again. They call no model."""


class RolloutKey(NamedTuple):
    """Namespace and id of one rollout. An id is unique within its namespace."""

    namespace: str
    id: str


class Stage(StrEnum):
    """Stages that each rollout passes through, in this order."""

    INIT = "INIT"
    RUN = "RUN"
    EVAL = "EVAL"


STAGES_LAST_FIRST = (Stage.EVAL, Stage.RUN, Stage.INIT)
"""Order in which stages get leases and workers. The last stage comes first: when it ends, the rollout's resources are
free."""


class Status(StrEnum):
    """Status of a rollout. `Queued` and `Running` are live; the others are terminal."""

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
        """Whether a rollout with this status has a reward. With every other status `reward` is null."""
        return self in (Status.COMPLETED, Status.TRUNCATED)


RESERVED_SAMPLING_FIELDS = frozenset(
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
"""Engine parameters that `Sampling.extra` cannot hold. Rollyard sets or omits these parameters itself, so that the
recorded tokens of each turn are exactly the tokens that the engine used."""


class Sampling(WireModel):
    """Sampling parameters of every turn."""

    model_config = ConfigDict(allow_inf_nan=False)

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; 1 leaves the distribution as it is."""
    top_k: int | None = Field(default=None, ge=1)
    """Each token is chosen from this many of the likeliest tokens; null: from all tokens."""
    seed: int | None = None
    """Each turn of each sample gets its own seed, derived from this number. Null: no fixed seed."""
    max_tokens: int = Field(default=1024, ge=1)
    """Greatest number of sampled tokens of one turn."""
    min_tokens: int | None = Field(default=None, ge=0)
    """Least number of sampled tokens of one turn. The model cannot end the turn earlier."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """A token can be chosen only if its probability is at least this share of the most likely token's probability."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Presence penalty: subtracted from the logit of each token that the turn already contains."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Frequency penalty: subtracted once for each time that the turn already contains the token."""
    repetition_penalty: float | None = Field(default=None, gt=0)
    """Repetition penalty for tokens that the prompt or the turn already contains: divides their positive logits, and
    multiplies their negative logits."""
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = None
    """Token id -> number added to its logit."""
    allowed_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, min_length=1)
    """Ids of the only tokens to choose from."""
    bad_words: list[Annotated[str, Field(min_length=1)]] | None = None
    """Words that the model may not write."""
    stop: list[Annotated[str, Field(min_length=1)]] | None = None
    """Texts that end a turn. The turn's recorded tokens include the tokens of the text that ended the turn."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = []
    """Ids of further tokens that end a turn, beside the model's own."""
    logprobs: Literal["raw", "processed"] = "raw"
    """raw: logprobs of the model's own distribution. processed: logprobs of the distribution that tokens are drawn from,
    after temperature, penalties and truncation. `logprobsMode` of the model's engine must have the same value."""
    extra: dict[str, JsonValue] = {}
    """Further parameters, passed to the engine unchanged."""

    @model_validator(mode="after")
    def _all_integers(self) -> Self:
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"`min_tokens` must be at most `max_tokens` ({self.max_tokens})")
        if not self.extra:
            return self
        if known := sorted(self.extra.keys() & type(self).model_fields.keys()):
            raise ValueError(f"`extra` is for other parameters; set `{known[0]}` as a field of its own")
        if ours := sorted(self.extra.keys() & RESERVED_SAMPLING_FIELDS):
            raise ValueError(f"`extra` cannot hold `{ours[0]}`: Rollyard sets it; leave it out")
        return self


TurnNumber = Annotated[int, Field(ge=1, le=1000)]
"""Number of a turn; the first turn is 1."""


class ForkPoint(WireModel):
    """Turn of an earlier rollout from which another rollout goes on."""

    rollout: RolloutId
    """Id of the earlier rollout, in the same namespace."""
    turn: TurnNumber
    """Number of the last turn that both rollouts have. The first turn is 1."""


class AgentSpec(WireModel):
    """Agent of a rollout: the built-in loop, or a command (harness) with a loop of its own. With `mode: check`, work that
    needs no model."""

    type: Literal["loop", "command", "solve", "nothing", "script"] = "loop"
    """command: a harness runs in the sandbox. A gateway answers the harness's model calls and records the trajectory.
    solve: the task's reference solution. nothing: no work at all. script: `script`. The last three call no model."""
    script: str | None = Field(default=None, min_length=1, max_length=65536)
    """Bash script of `type: script`, run where a command would run. What it prints is its answer, for task kinds that score
    the agent's last words."""
    command: str | None = Field(default=None, min_length=1, max_length=65536)
    """Bash command, run in the image's working folder, or in /workspace if the image names none. OPENAI_BASE_URL,
    OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY are set for the gateway. ROLLYARD_PROMPT_FILE names a file with
    the task. ROLLYARD_SYSTEM_PROMPT_FILE names a file with the system prompt of the built-in loop."""
    env: dict[EnvName, str] = {}
    """Further environment variables of the command."""
    sampling: Literal["rollout", "harness"] = "rollout"
    """rollout: the rollout's sampling parameters apply to all calls. harness: parameters in a call override the
    rollout's."""
    max_turns: int = Field(default=20, ge=1, le=1000)
    """Greatest number of model calls. A rollout that needs more ends Truncated; further calls of a command are refused."""
    tool_timeout_seconds: float = Field(default=30.0, gt=0)
    """Longest time of one tool call. A longer call is stopped, and its result reports the timeout."""
    tool_parser: str | None = Field(default=None, min_length=1, max_length=64)
    """Format of the model's tool calls, such as hermes or llama3_json. Default: the format in the model's chat
    template."""

    snapshots: Literal["none", "last", "every"] | Annotated[list[TurnNumber], Field(min_length=1)] = "none"
    """Snapshots of the sandbox's files that are stored with the rollout. last: one at the end of RUN. every: one after
    each turn of the built-in loop. A list of numbers: one after each of these turns; the first turn is 1."""

    resume: Literal["auto", "never"] = "auto"
    """auto: a rollout whose node is lost goes on after its last turn elsewhere, where that is safe. never: it begins again."""

    fork_from: ForkPoint | None = None
    """Turn of another rollout from which this rollout goes on, with the conversation and the files after that turn. The
    other rollout needs a snapshot after the turn. It must have the same pool and the same task."""

    @model_validator(mode="after")
    def _command_given(self) -> Self:
        if (self.type == "command") != (self.command is not None):
            raise ValueError("`command` and `type: command` go together; set both, or neither for the built-in loop")
        if (self.type == "script") != (self.script is not None):
            raise ValueError("`script` and `type: script` go together; set both, or neither")
        if self.type != "command" and (self.env or self.sampling != "rollout"):
            raise ValueError("`env` and `sampling` are for `type: command`")
        if self.type != "loop" and self.fork_from is not None:
            raise ValueError("`fork_from` is for the built-in loop; a command has a conversation of its own")
        if self.type != "loop" and self.snapshots not in ("none", "last"):
            raise ValueError("`snapshots` after turns are for the built-in loop; a command can have `snapshots: last`")
        return self

    @property
    def calls_model(self) -> bool:
        return self.type in ("loop", "command")


class Budgets(WireModel):
    """Limits of one rollout. A time budget above the pool's has no effect."""

    init_seconds: float | None = Field(default=None, gt=0)
    """Budget of INIT in seconds. Exceeding the budget counts as an infrastructure failure."""
    run_seconds: float | None = Field(default=None, gt=0)
    """Budget of RUN in seconds. A rollout that exceeds the budget after its first turn ends Truncated, and its work is
    scored."""
    eval_seconds: float | None = Field(default=None, gt=0)
    """Budget of EVAL in seconds."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Greatest number of tokens of the conversation. A rollout with more tokens after its first turn ends Truncated."""
    keep_failed_seconds: float | None = Field(default=None, gt=0, le=86400)
    """Time for which the sandbox of a failed attempt stays on its node, for `rollyard exec` and `rollyard cp`. A node agent
    keeps at most a quarter of its sandboxes, and none when it drains."""


class WeightsConstraint(WireModel):
    """Limits on the weights versions that may sample a rollout after it has started."""

    same: bool = False
    """True: only the version that samples the other rollouts of the group may sample this rollout."""
    max_staleness: int | None = None


class RolloutRequest(WireModel):
    """Body of a submit. n > 1 makes one group with sample_index 0..n-1."""

    id: RolloutId | None = None
    """Id chosen by the caller. A request with the id and the body of an existing rollout attaches to that rollout. With
    the same id and another body the answer is a 409. With n > 1 the id names the group, and the rollouts are called
    `<id>.<sample_index>`."""
    pool: str = Field(pattern=NAME_PATTERN)
    """RolloutPool that runs the rollout."""
    task: Task
    n: int = Field(default=1, ge=1, le=1024)
    """Number of rollouts of this task."""
    group: RolloutId | None = None
    """Name of the group. Default with n > 1: `id`, or a generated name if `id` is null. Default with n = 1: no
    group."""
    agent: AgentSpec = shared(AgentSpec())
    sampling: Sampling = shared(Sampling())
    budgets: Budgets = shared(Budgets())
    priority: int = Field(default=0, ge=-100, le=100)
    """Priority in the queue; a higher number starts first."""
    mode: Literal["train", "eval", "check"] = "train"
    """train, eval: label for the caller's own use, stored with the trajectory. check: the task or an old result is checked.
    Such a rollout calls no model, and the stream of ended rollouts leaves it out."""
    regrade_of: RolloutId | None = None
    """Ended rollout of the same namespace, whose stored artifact this rollout scores again. It begins at EVAL, and its `task`
    may have another evaluator. Needs `mode: check`."""
    min_weights_version: str | None = Field(default=None, pattern=VERSION_PATTERN, max_length=64)
    """Oldest version of the policy's weights that may sample the rollout. The rollout stays queued until an endpoint serves
    this version or a newer one. You may name a version that does not exist yet."""
    group_version: Literal["any", "same"] = "any"
    """same: only the version with which the group's first rollout starts may sample the rollouts of the group. When no
    endpoint serves this version any more, a group without sampled tokens restarts. In a group with sampled tokens the
    unfinished rollouts end Cancelled."""
    max_staleness: int | None = Field(default=None, ge=0)
    """A rollout restarts if the pool's weights are more than this many versions newer than the version with which the
    rollout started."""

    @model_validator(mode="after")
    def _consistent_versions(self) -> Self:
        if self.group_version == "same" and self.n == 1 and self.group is None:
            raise ValueError('`group_version: "same"` needs a group; set `n` or `group`, or leave it out')
        return self

    @model_validator(mode="after")
    def _check_calls_no_model(self) -> Self:
        if (self.mode == CHECK) != (self.regrade_of is not None or not self.agent.calls_model):
            raise ValueError(
                "`mode: check` goes with `regrade_of` or an agent of type solve, nothing or script; set both, or neither"
            )
        if self.regrade_of is not None and self.n > 1:
            raise ValueError("one rollout scores an artifact again; leave out `n`")
        if self.mode == CHECK and (self.min_weights_version is not None or self.weights is not None):
            raise ValueError("`mode: check` samples from no weights: leave out their versions")
        return self

    @property
    def weights(self) -> WeightsConstraint | None:
        """Constraint on the weights after the rollout has begun; None if there is none."""
        if self.group_version == "any" and self.max_staleness is None:
            return None
        return WeightsConstraint(same=self.group_version == "same", max_staleness=self.max_staleness)

    @model_validator(mode="after")
    def _ids(self) -> Self:
        if self.n > 1 and self.id is not None and self.group is not None and self.group != self.id:
            raise ValueError("with n > 1 the id names the group; leave out `group` or give both the same value")
        return self


class RolloutError(WireModel):
    """Reason why a rollout has no reward."""

    stage: Stage | None = None
    reason: str
    """CamelCase word for programs, such as SandboxLost."""
    message: str

    @field_validator("message")
    @classmethod
    def _storable(cls, message: str) -> str:
        """Cut the message, and escape halves of surrogate pairs, which JSON cannot contain."""
        return message[:MAX_MESSAGE_CHARS].encode(errors="backslashreplace").decode()


class KeptView(WireModel):
    """Sandbox of a failed attempt, which stays for people who look into it."""

    node: str
    allocation: str
    stage: Stage
    """Stage in which the attempt failed."""
    until: float
    """Unix seconds."""


class RolloutView(WireModel):
    """Rollout without its trajectory, as in lists."""

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
    """Position in the stream of terminal records; null until the rollout is terminal."""
    weights_versions: list[str] = []
    """Versions of the policy's weights that sampled the tokens of the result. Until there is a result: the version at the
    start of the present attempt. Empty after an end without tokens."""
    outdated: int = 0
    """Number of restarts because the weights of an attempt had become too old. These restarts do not count as
    retries."""
    waiting: ReasonText | None = None
    """Reason why a rollout waits in the queue, in INIT for its node, or in RUN for a model server, and since when. In JSON
    a text, `Word: sentence (since ...)`. The word is from a fixed set."""
    kept: KeptView | None = None
    """Sandbox of a failed attempt that is kept. Null in lists."""
    metadata: dict[str, JsonValue] = {}
    """Metadata of the task."""
    artifact: Literal["Kept", "Deleted"] | None = None
    """Whether the artifact that EVAL scores is still stored. Null if the rollout has left none."""
    task: str = ""
    """Digest of the task."""
    tokens: int | None = None
    """Sampled tokens of the last attempt; null until the rollout has a result. So are the next two fields."""
    turns: int | None = None
    seconds: float | None = None
    """Seconds at work in INIT, RUN and EVAL of the last attempt, without the waits for stage workers and between stages."""
    failed_calls: int | None = None
    """Number of tool calls of the last attempt that failed. Null: not known."""
    lost: int = 0
    """Number of lost attempts and leases after which the rollout went on."""


class RolloutSums(WireModel):
    """Sums over the ended rollouts that have one value of a field."""

    value: str | None
    """Null: the field is not known, such as the task of rollouts without its digest, or has no value."""
    rollouts: int
    scored: int
    """Rollouts with a reward."""
    mean_reward: float | None
    best_reward: float | None
    tokens: int
    """Sampled tokens."""
    seconds: float
    """Seconds at work in all stages."""
    groups: int
    """Groups with at least two rewards among these rollouts. In an evaluation the rollouts of one task are a group."""
    informative: int
    """Groups whose rewards differ."""
    newest: str
    """Id of the rollout that was submitted last."""
    kind: str
    """A task kind of these rollouts; there may be others, unless the field is the task."""
    prompt: str | None = None
    """Beginning of the task's text, if the field is the task and at most 100 rows are asked for. Null: not known."""


class RolloutSummary(WireModel):
    """Answer of `GET /v1/rollouts/summary`."""

    by: str
    rows: list[RolloutSums]
