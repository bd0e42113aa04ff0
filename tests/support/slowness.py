"""The machine's current slowness, for tests that depend on real time and cannot wait for a condition."""

from __future__ import annotations

import os

MOST = 3


def slowness() -> int:
    """Return 1 when each busy process has a core; else the factor for a test's own budgets."""
    return min(MOST, 1 + int(os.getloadavg()[0] / (2 * (os.cpu_count() or 1))))
