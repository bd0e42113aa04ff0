"""Probes the folder for `serve --data`: whether the store works there, and whether the file server's clock is right."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rollyard.doctor.finding import Finding

SKEW_SECONDS = 2.0
"""Tolerated difference of two clocks. With a greater difference, tokens may expire too early, or leases may seem too old."""


def data(folder: Path) -> Iterator[Finding]:
    """Probe the folder. Raises Unavailable if the store does not work there, and OSError if the folder is not
    writable."""
    from rollyard.store.journal_mode import choose_journal, file_system_of

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    journal, kind = choose_journal(folder), file_system_of(folder)
    free = shutil.disk_usage(folder).free >> 30
    yield Finding(
        "OK" if free >= 1 else "WARN",
        "data",
        f"{folder} ({kind}) can hold the store, journal {journal}; {free} GiB free",
    )
    yield _file_clock(folder)


def _file_clock(folder: Path) -> Finding:
    with tempfile.NamedTemporaryFile(prefix="rollyard-doctor-", dir=folder) as file:
        before = time.time()
        file.write(b"x")
        file.flush()
        stamped = Path(file.name).stat().st_mtime
    return clocks("file server's clock", stamped - before, "the file server")


def clocks(what: str, ahead: float, whose: str) -> Finding:
    """Compare two clocks. `ahead`: seconds by which the other clock is ahead of this machine's clock."""
    if abs(ahead) <= SKEW_SECONDS:
        return Finding("OK", what, f"within {max(0.1, abs(ahead)):.1f} s of this machine's")
    way = "ahead of" if ahead > 0 else "behind"
    return Finding(
        "FAIL",
        what,
        f"{whose} is {abs(ahead):.0f} s {way} this machine; tokens and certificates need equal clocks: run chrony on both",
    )
