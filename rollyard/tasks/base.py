"""The interface of a task kind: set-up, prompt, artifact, score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from rollyard.core.errors import RollyardError, TaskError
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.own_tools import OfferedTool, ToolResult
from rollyard.trajectory import Artifact, Turn

Message = dict[str, Any]
"""A chat message with role and content."""


@dataclass(frozen=True, slots=True)
class Score:
    reward: float
    """A finite number."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    """Reasons for the reward, in sentences for people. The model never sees them. They are cut after `MAX_NOTES_CHARS`
    characters in all."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward, finite numbers. `reward` alone decides; nothing adds the parts."""


class RoleModel(Protocol):
    """Model of one role."""

    async def __call__(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any] | type[BaseModel] | None = None,
        max_tokens: int = 1024,
        temperature: float = 0.0,
        control: Sequence[Message] | None = None,
    ) -> Any:
        """Ask the model, and return the text of its answer. With `schema`, a JSON schema or a pydantic model, return the JSON
        value or an object of the model.

        `control`: the same question with a harmless text in place of the agent's. If the model answers it well, and never the
        question itself, then the agent's text is the cause, and the reward is 0.

        A model that is down, too slow, or answers in a wrong form ends the attempt, also if the handler catches the error.
        """


class RoleModels(Protocol):
    """Models by role, of the pool's `inference`: `models.judge` and `models["judge"]` are the same."""

    def __getitem__(self, role: str) -> RoleModel: ...

    def __getattr__(self, role: str) -> RoleModel: ...

    def take_fault(self) -> RollyardError | None:
        """Return the first fault since the last call of this method."""


class _NoModels:
    """Models of a handler that is called outside of a rollout."""

    def __getitem__(self, role: str) -> RoleModel:
        raise TaskError(f"there is no model for the role {role!r}")

    def __getattr__(self, role: str) -> RoleModel:
        return self[role]

    def take_fault(self) -> None:
        return None


NO_MODELS = _NoModels()


class AnotherSandbox(Protocol):
    def __call__(self, *, files: bool = True) -> AbstractAsyncContextManager[Sandbox]:
        """`files`: with the agent's files, if the handler has `eval_from_snapshot`; else of the image alone."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that EVAL gives to a handler."""

    artifact: Artifact
    """Texts and bytes that `collect` returned."""
    turns: Sequence[Turn]
    """Copy of the turns."""
    seconds: float
    """Time limit for running the agent's work. The limit is less than the stage's budget. Exceeding the budget is an
    infrastructure fault, but a solution that hangs is the agent's mistake and gets a Score."""
    sandbox: Sandbox | None = None
    """Fresh sandbox; None unless the handler has `eval_needs_sandbox`."""
    another: AnotherSandbox | None = None
    """Starts another sandbox like `sandbox`, which ends when the block is left; None without `sandbox`. For work that must not
    see what ran in `sandbox`. Use one at a time: each takes the room of a rollout."""
    models: RoleModels = NO_MODELS
    """Models by role, such as a judge."""


def sum_of_rewards(turns: Sequence[Turn]) -> float:
    """Return the sum of the rewards that an environment gave for the turns."""
    return sum(turn.reward for turn in turns if turn.reward is not None)


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of an environment to one turn."""

    text: str | None = None
    """Observation: the next message of the conversation. None: the turn gets a reward, and no message. Without a tool call
    in the turn, the conversation then ends."""
    reward: float | None = None
    """Reward of the turn, a finite number; None if the turn gets none."""
    done: bool = False
    """True: the conversation ends, and the model does not see `text`."""
    role: Literal["user", "tool"] = "user"
    """Role of the message with `text`."""


class Environment(Protocol):
    """The other side of one rollout's conversation, in one attempt. A handler's optional method `environment` makes it.

    Exceptions have the same meaning as those of a Handler.
    """

    opening: Sequence[Message] = ()
    """Messages after those of the handler's `prompt`, such as the first observation."""
    every_turn: bool = False
    """Whether `reply` is called after each turn. If not, it is not called after a turn with a tool call."""

    async def reply(self, turn: Turn) -> Reply | None:
        """Reply to the model's turn. None: the environment has nothing to add; without a tool call in the turn, the
        conversation ends."""

    async def close(self) -> None:
        """Release what the environment holds. This method is always called, however the attempt ends."""


class SavableEnvironment(Environment, Protocol):
    """An environment whose rollout goes on after its last turn when its node is lost. It changes nothing in the agent's
    sandbox, because a saved state has no files."""

    saves: bool = True
    """False: this one cannot be saved, in spite of its methods."""

    async def state(self) -> str:
        """Return all that later replies depend on, at most 1,048,576 characters. It is called after each turn behind which the
        conversation goes on."""

    async def restore(self, state: str) -> None:
        """Go to this state, which `state` of an equal environment has returned, and set the `opening` of that one. A new
        environment gets it before its first `reply`, and may get an earlier one before that too."""


class AgentConversation(Protocol):
    """One conversation of a handler's own agent loop with the model that is trained."""

    async def sample(self, max_tokens: int | None = None) -> Turn:
        """Let the model take its turn, and return a copy of it. `max_tokens`: greatest length of the turn, at most the
        request's."""

    async def call_tools(self) -> Sequence[ToolResult]:
        """Run the calls of the last turn. Their results are the next messages, and are returned. Without a call, and behind a
        turn that was cut off (`finish_reason` is `length`), nothing runs."""

    def add(self, *messages: Message) -> None:
        """Append messages, such as a user's."""


class LoopAgent(Protocol):
    """The model that is trained, for a handler's own agent loop.

    The request's limits hold for all conversations together. When one is reached, and after a fault, no method returns: the
    loop is cancelled. Methods raise TaskError for wrong arguments.
    """

    @property
    def models(self) -> RoleModels:
        """Models by role, such as a judge."""

    def conversation(self, messages: Sequence[Message], tools: Sequence[str] | None = None) -> AgentConversation:
        """Begin a conversation with these messages. `tools`: names of the tools that the model gets; None: all that `tools`
        of the handler returns. Conversations may go on at the same time."""


class Handler(Protocol):
    """Handler of one task kind. Each node agent finds the handler's class in the entry point group `rollyard.tasks` and
    makes one instance, without arguments.

    Exceptions report faults. After an infrastructure fault a new attempt may start. Infrastructure faults are
    NodeFault, SandboxError (except ImageNotFound) and EndpointError (except EndpointRefused). TaskError and any other
    exception mean that the task or the handler is wrong: the rollout ends Failed without a new attempt (see
    `guarded_handler.py`). A mistake of the agent gets a Score, never an exception.

    More methods are optional:

    - `async close(self) -> None`
    - `async agent_loop(self, task: Task, sandbox: Sandbox, agent: LoopAgent) -> None`, in place of `environment` and of the
      built-in loop. Drives the conversations itself. The rollout is Completed when it returns. When a node is lost, it runs
      again from its start and gets the saved turns, unless the class has `repeatable_loop = False`.
    - `async environment(self, task: Task, sandbox: Sandbox) -> Environment | None`. With an environment, `prompt` may
      return an empty list, and `evaluate` may return None for the sum of the turns' rewards. A method with a third parameter
      gets the models by role: `environment(self, task, sandbox, models: RoleModels)`.
    - `eval_from_snapshot(self, task: Task) -> bool`. True: the fresh sandbox of `evaluate` has all files that the agent's
      sandbox had changed at the end of RUN, and none of its processes.
    - `collect_seconds(self, task: Task) -> float`. Time that `collect` may take beyond INIT's budget, for a verifier that runs
      in the agent's sandbox.
    - `restore_rules(self, task: Task) -> RestoreRules | None`, with `eval_from_snapshot`. Names changes that are left out.
    - `async solve(self, task: Task, sandbox: Sandbox) -> str | None`. Applies the task's reference solution to RUN's sandbox,
      after `init` and in place of an agent, so that a check of the task can score it. A kind whose agents answer in words
      returns the answer, which is then the text of the only turn. Raises TaskError if the task has none.
    - `async probe(self, task: Task, sandbox: Sandbox, seconds: float) -> None`, with `eval_from_snapshot`. Raises SandboxError
      or TaskError if `evaluate` cannot use this sandbox. It is called after an evaluation that failed: if a sandbox of the
      image alone passes, and one with the agent's files does not, the reward is 0. Default: bash runs a command in time.
    """

    eval_needs_sandbox: bool
    """Whether `evaluate` gets a fresh sandbox."""

    def tools(self, task: Task) -> Sequence[OfferedTool]:
        """Return the tools, in the order in which the model gets them: `bash`, `ipython`, `editor`, `submit`, and tools of the
        handler's own."""

    def prompt(self, task: Task) -> list[Message]:
        """Return the messages with which a conversation starts."""

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        """Prepare the sandbox before the agent's first turn."""

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        """Return the artifact that `evaluate` scores. The sandbox is closed afterwards."""

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        """Compute the reward from the artifact, the turns, and data that the agent could not reach."""
