"""The interface of a task kind: set-up, prompt, artifact, score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.kinds.rollout import Task, Turn
from rollyard.node.sandbox.sandbox import Sandbox

Artifact = dict[str, str]
"""Name -> text: everything that EVAL gets from RUN."""
Message = dict[str, Any]
"""A chat message with role and content."""


@dataclass(frozen=True, slots=True)
class Score:
    reward: float
    """A finite number."""
    metrics: Mapping[str, float] = field(default_factory=dict)


class TaskHandler(Protocol):
    """One task kind. Its handler is found by the entry point group `rollyard.tasks` and made once in a process, without
    arguments.

    Exceptions report faults. SandboxError and NodeFault are infrastructure faults (a new attempt). TaskError and any
    other exception mean that the task or its handler is wrong: the rollout ends Failed at once (`guarded_handler.py`
    does this). A mistake of the agent is a Score, never an exception.
    """

    eval_needs_sandbox: bool
    """Whether `evaluate` gets a fresh sandbox; otherwise it gets None."""

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
        """Take the artifact to be scored from the sandbox before it is closed."""
        ...

    async def evaluate(
        self, task: Task, artifact: Artifact, sandbox: Sandbox | None, turns: Sequence[Turn], seconds: float
    ) -> Score:
        """Compute the reward. The agent must not have been able to reach anything that is used here.

        `seconds` is the time limit for running the agent's work here. It is less than the stage's budget: exceeding the
        budget is an infrastructure fault, but a solution that hangs is the agent's mistake and gets a Score.
        """
        ...
