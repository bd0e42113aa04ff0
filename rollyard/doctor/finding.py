"""Findings: the results of probes. An expected error of a probe becomes a finding too."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from rollyard.core.errors import RollyardError

Level = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    what: str
    detail: str
    """The result and, for a failure, the remedy."""


Probe = Callable[[], Finding | Iterable[Finding]]


def findings(probes: Iterable[tuple[str, Probe]]) -> Iterator[Finding]:
    """Run the probes one by one and yield their findings.

    A RollyardError, an OSError and a time-out of a command become findings of level FAIL. Raises every other exception
    of a probe.
    """
    for what, probe in probes:
        try:
            found = probe()
            yield from [found] if isinstance(found, Finding) else found
        except (RollyardError, OSError, subprocess.TimeoutExpired) as error:
            yield Finding("FAIL", what, str(error))
