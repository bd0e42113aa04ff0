"""Named points, such as `after-submit`, at which a test can kill the process with SIGKILL."""

from __future__ import annotations

import os
import signal
from typing import Literal, get_args

PoolPoint = Literal[
    "after-finalizer",
    "after-pool-status",
    "after-create-allocation",
    "after-prepare",
    "after-intent",
    "after-submit",
    "after-record",
    "after-cancel",
    "after-ended-allocation",
    "before-allocation-removal",
    "before-finalizer-removal",
]
"""Points in the reconcilers."""
ServerPoint = Literal["before-turns-commit", "after-turns-commit", "after-snapshot-pack", "after-snapshot-commit"]
"""Points in the server's storing of what rollouts go on with."""
NodePoint = Literal[
    "after-saved-turn",
    "after-answered-call",
    "before-turns-upload",
    "after-turns-upload",
    "before-snapshot",
    "after-snapshot",
    "after-snapshot-upload",
    "before-restore",
    "after-restore",
    "after-environment-restore",
    "after-played-turn",
    "after-replay",
]
"""Points in a node agent's saving of rollouts, and in its going on with them."""
POOL_POINTS: tuple[PoolPoint, ...] = get_args(PoolPoint)
SERVER_POINTS: tuple[ServerPoint, ...] = get_args(ServerPoint)
NODE_POINTS: tuple[NodePoint, ...] = get_args(NodePoint)
VARIABLE = "ROLLYARD_CRASH_AT"


def failpoint(name: PoolPoint | ServerPoint | NodePoint) -> None:
    """Kill this process if the environment variable names this point. If it names a folder, the point kills the first process
    that gets there while the folder has a file of the point's name."""
    at = os.environ.get(VARIABLE)
    if at is None:
        return
    if at == name or (at.startswith("/") and _taken(os.path.join(at, name))):
        os.kill(os.getpid(), signal.SIGKILL)


def _taken(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
