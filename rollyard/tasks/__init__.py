"""Task kinds: what a rollout's sandbox gets, what its agent is asked, and how its work is scored.

`Handler` is the interface of a kind: `from rollyard.tasks import Handler, Score, Task`. Plug-ins add kinds through the entry
point group `rollyard.tasks`. The interface is imported on first use, because the processes that score import this package
and need none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollyard.kinds.task import Task
    from rollyard.kinds.task_fields import TaskFields
    from rollyard.tasks.base import (
        AgentConversation,
        Environment,
        Evaluation,
        Handler,
        LoopAgent,
        Reply,
        RoleModels,
        Score,
    )
    from rollyard.tasks.own_tools import McpServer, ProgramTool, Tool, ToolResult
    from rollyard.trajectory import Artifact, Turn

__all__ = [
    "AgentConversation",
    "Artifact",
    "Environment",
    "Evaluation",
    "Handler",
    "LoopAgent",
    "McpServer",
    "ProgramTool",
    "Reply",
    "RoleModels",
    "Score",
    "Task",
    "TaskFields",
    "Tool",
    "ToolResult",
    "Turn",
]
ELSEWHERE = {
    "TaskFields": "rollyard.kinds.task_fields",
    **dict.fromkeys(("McpServer", "ProgramTool", "Tool", "ToolResult"), "rollyard.tasks.own_tools"),
}
"""Name -> its module, for names that `rollyard.tasks.base` does not have."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(ELSEWHERE.get(name, "rollyard.tasks.base")), name)
