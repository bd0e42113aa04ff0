"""What a probe found, and the guard that turns its failure into a finding."""

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
    """What was found and, where that is not well, what to change."""


Probe = Callable[[], Finding | Iterable[Finding]]


def findings(probes: Iterable[tuple[str, Probe]]) -> Iterator[Finding]:
    """Of each probe, as they come; one that cannot do its work is a failure of what it asks about."""
    for what, probe in probes:
        try:
            found = probe()
            yield from [found] if isinstance(found, Finding) else found
        except (RollyardError, OSError, subprocess.TimeoutExpired) as error:
            yield Finding("FAIL", what, str(error))
