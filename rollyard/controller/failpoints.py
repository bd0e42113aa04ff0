"""Named points in the reconcilers, such as `after-submit`, at which a test can kill the process with SIGKILL."""

from __future__ import annotations

import os
import signal
from typing import Literal, get_args

Failpoint = Literal[
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
FAILPOINTS: tuple[Failpoint, ...] = get_args(Failpoint)
VARIABLE = "ROLLYARD_CRASH_AT"


def failpoint(name: Failpoint) -> None:
    """Kill this process if the environment variable names this point."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
