"""Task kinds: what a rollout's sandbox gets, what its agent is asked, and how its work is scored.

`Handler` is the interface of a kind: `from rollyard.tasks import Handler, Score, Task`. Plug-ins add kinds through the entry
point group `rollyard.tasks`. The interface is imported on first use, because the processes that score import this package
and need none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollyard.kinds.rollout import Task
    from rollyard.tasks.base import Environment, Handler, Reply, Score
    from rollyard.trajectory import Turn

__all__ = ["Environment", "Handler", "Reply", "Score", "Task", "Turn"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rollyard.tasks import base

    return getattr(base, name)
