"""The interface of a task kind: set-up, prompt, artifact, score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.kinds.rollout import Task, Turn
from rollyard.node.sandbox.sandbox import Sandbox

Artifact = dict[str, str]
"""Name -> text: everything that EVAL gets from RUN's sandbox."""
Message = dict[str, Any]
"""A chat message with role and content."""


@dataclass(frozen=True, slots=True)
class Score:
    reward: float
    """A finite number."""
    metrics: Mapping[str, float] = field(default_factory=dict)


class TaskHandler(Protocol):
    """Handler of one task kind. Each node agent finds the handler's class in the entry point group `rollyard.tasks` and
    makes one instance, without arguments.

    Exceptions report faults. After an infrastructure fault a new attempt may start. Infrastructure faults are
    NodeFault, SandboxError (except ImageNotFound) and EndpointError (except EndpointRefused). TaskError and any other
    exception mean that the task or the handler is wrong: the rollout ends Failed without a new attempt (see
    `guarded_handler.py`). A mistake of the agent gets a Score, never an exception.
    """

    eval_needs_sandbox: bool
    """Whether `evaluate` gets a fresh sandbox. If not, its argument `sandbox` is None."""

    def image(self, task: Task) -> str | None:
        """Return the sandbox image; None for the pool's default."""
        ...

    def tools(self, task: Task) -> list[str]:
        """Return names from `agents.tool_schemas.SCHEMAS`, in the order in which the model gets them."""
        ...

    def prompt(self, task: Task) -> list[Message]:
        """Return the messages with which a conversation starts."""
        ...

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        """Prepare the sandbox before the agent's first turn."""
        ...

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        """Return the artifact that `evaluate` scores. The sandbox is closed afterwards."""
        ...

    async def evaluate(
        self, task: Task, artifact: Artifact, sandbox: Sandbox | None, turns: Sequence[Turn], seconds: float
    ) -> Score:
        """Compute the reward from the artifact, the turns, and data that the agent could not reach.

        `seconds` is the time limit for running the agent's work. The limit is less than the stage's budget. Exceeding the
        budget is an infrastructure fault, but a solution that hangs is the agent's mistake and gets a Score.
        """
        ...
