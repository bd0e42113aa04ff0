"""How slow this machine is at the moment, for tests whose clock is the world's and cannot wait for a condition."""

from __future__ import annotations

import os

MOST = 3


def slowness() -> int:
    """1 where there is a core for each process that wants one; what else a test's own budgets are to be multiplied by."""
    return min(MOST, 1 + int(os.getloadavg()[0] / (2 * (os.cpu_count() or 1))))
