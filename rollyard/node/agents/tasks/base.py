"""What a task kind brings: how to set up, what to ask, what to keep, how to score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.kinds.rollout import Task, Turn
from rollyard.node.sandbox.sandbox import Sandbox

Artifact = dict[str, str]
"""Name -> text: all that EVAL gets to see of RUN."""
Message = dict[str, Any]
"""A chat message: role and content."""


@dataclass(frozen=True, slots=True)
class Score:
    reward: float
    """Finite."""
    metrics: Mapping[str, float] = field(default_factory=dict)


class TaskHandler(Protocol):
    """One task kind; found by the entry point group `rollyard.tasks`, made once a process without arguments.

    What goes wrong here is told by exceptions: SandboxError and NodeFault are ours (a new attempt); TaskError, and
    whatever else is raised, says that the task or its handler is wrong (Failed, at once; `guarded_handler.py` sees
    to it). What the
    agent did wrong is a Score, never an exception.
    """

    eval_needs_sandbox: bool
    """Whether `evaluate` gets a fresh sandbox; None is passed otherwise."""

    def image(self, task: Task) -> str | None:
        """The sandbox image; None for the pool's default."""
        ...

    def tools(self, task: Task) -> list[str]:
        """Names of `agents.toolset.SCHEMAS`, in the order they are shown."""
        ...

    def prompt(self, task: Task) -> list[Message]:
        """The messages a conversation starts with."""
        ...

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        """Prepare the sandbox before the agent's first turn."""
        ...

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        """What is to be scored, taken from the sandbox before it goes."""
        ...

    async def evaluate(
        self, task: Task, artifact: Artifact, sandbox: Sandbox | None, turns: Sequence[Turn], seconds: float
    ) -> Score:
        """The reward. Nothing of it may have been within the agent's reach.

        `seconds` is the most that the agent's work may take to run here. It is less than the stage's budget, because
        going over the budget is a fault of ours, and a solution that hangs is the agent's doing: a Score.
        """
        ...
