"""The time of EVAL, divided among the runs of the tests and two control runs, so that no work of an agent can use up the time
of the control runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

CONTROL_TIME = 1.25
"""Time of a control run as a multiple of the tests' time. So results that were forged in the last moment of the tests' time
come in time in the control run too, in which the sandbox may be slower."""


@dataclass(frozen=True)
class RunTime:
    """Time of one run, with the preparation of its sandbox."""

    ends: float
    """Moment of `time.monotonic()`."""
    most: float
    """Longest time of the script, in seconds."""

    def left(self) -> float:
        """Return the seconds that the script has now."""
        return max(0.0, min(self.most, self.ends - time.monotonic()))


class EvalTime:
    """The time that is left of EVAL."""

    def __init__(self, seconds: float, most: float) -> None:
        """`most`: longest time of one run of the script, in seconds."""
        self._ends = time.monotonic() + seconds
        self._most = most

    def tests(self, runs: int) -> RunTime:
        """Return the time of the next run of the tests. `runs`: number of runs still to come, with this one."""
        return self._share(runs + 2 * CONTROL_TIME, self._most)

    def control(self, runs: int, most: float | None = None) -> RunTime:
        """Return the time of a run of control tests, or of the reference. `runs`: number of such runs still to come, with this
        one. `most`: longest time of its script, by default a control run's."""
        return self._share(runs, CONTROL_TIME * self._most if most is None else most)

    def beside_tests(self) -> RunTime:
        """Return the time of a run of control tests that starts together with the only run of the tests: theirs, and then its
        own. So the tests cannot use up its time by work that keeps the cores busy."""
        return self._share((1 + 2 * CONTROL_TIME) / (1 + CONTROL_TIME), (1 + CONTROL_TIME) * self._most)

    def _share(self, parts: float, most: float) -> RunTime:
        now = time.monotonic()
        return RunTime(now + (self._ends - now) / parts, most)
