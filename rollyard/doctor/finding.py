"""The result of a probe, and the guard that turns a probe's error into a finding."""

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
    """Yield each probe's findings as they come; an error of a probe becomes a failed finding."""
    for what, probe in probes:
        try:
            found = probe()
            yield from [found] if isinstance(found, Finding) else found
        except (RollyardError, OSError, subprocess.TimeoutExpired) as error:
            yield Finding("FAIL", what, str(error))
