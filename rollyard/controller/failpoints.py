"""Named points between an intent and its record. At such a point a test kills the process, as `kill -9` would."""

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
    "before-allocation-removal",
    "before-finalizer-removal",
]
FAILPOINTS: tuple[Failpoint, ...] = get_args(Failpoint)
VARIABLE = "ROLLYARD_CRASH_AT"


def failpoint(name: Failpoint) -> None:
    """Kill this process at once if the environment names this point."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
