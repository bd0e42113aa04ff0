"""The interface of a task kind: set-up, prompt, artifact, score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rollyard.kinds.rollout import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.trajectory import Turn

Artifact = dict[str, str]
"""Name -> text: everything that EVAL gets from RUN's sandbox."""
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


def sum_of_rewards(turns: Sequence[Turn]) -> float:
    """Return the sum of the rewards that an environment gave for the turns."""
    return sum(turn.reward for turn in turns if turn.reward is not None)


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of an environment to one turn."""

    text: str
    """Observation: the next message of the conversation."""
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


class Handler(Protocol):
    """Handler of one task kind. Each node agent finds the handler's class in the entry point group `rollyard.tasks` and
    makes one instance, without arguments.

    Exceptions report faults. After an infrastructure fault a new attempt may start. Infrastructure faults are
    NodeFault, SandboxError (except ImageNotFound) and EndpointError (except EndpointRefused). TaskError and any other
    exception mean that the task or the handler is wrong: the rollout ends Failed without a new attempt (see
    `guarded_handler.py`). A mistake of the agent gets a Score, never an exception.

    More methods are optional:

    - `async close(self) -> None`
    - `async environment(self, task: Task, sandbox: Sandbox) -> Environment | None`. With an environment, `prompt` may
      return an empty list, and `evaluate` may return None for the sum of the turns' rewards.
    - `eval_from_snapshot(self, task: Task) -> bool`. True: the fresh sandbox of `evaluate` has all files that the agent's
      sandbox had changed at the end of RUN, and none of its processes.
    - `async probe(self, task: Task, sandbox: Sandbox, seconds: float) -> None`, with `eval_from_snapshot`. Raises SandboxError
      or TaskError if `evaluate` cannot use this sandbox. It is called after an evaluation that failed: if a sandbox of the
      image alone passes, and one with the agent's files does not, the reward is 0. Default: bash runs a command in time.
    """

    eval_needs_sandbox: bool
    """Whether `evaluate` gets a fresh sandbox. If not, its argument `sandbox` is None."""

    def tools(self, task: Task) -> list[str]:
        """Return names from `agents.tool_schemas.SCHEMAS`, in the order in which the model gets them."""

    def prompt(self, task: Task) -> list[Message]:
        """Return the messages with which a conversation starts."""

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        """Prepare the sandbox before the agent's first turn."""

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        """Return the artifact that `evaluate` scores. The sandbox is closed afterwards."""

    async def evaluate(
        self, task: Task, artifact: Artifact, sandbox: Sandbox | None, turns: Sequence[Turn], seconds: float
    ) -> Score:
        """Compute the reward from the artifact, the turns, and data that the agent could not reach.

        `seconds` is the time limit for running the agent's work. The limit is less than the stage's budget. Exceeding the
        budget is an infrastructure fault, but a solution that hangs is the agent's mistake and gets a Score.
        """
