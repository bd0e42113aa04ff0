"""Which driver to use."""

from __future__ import annotations

from pathlib import Path

from rollyard.errors import Invalid
from rollyard.slurm.base import Driver
from rollyard.slurm.local import LocalDriver


def choose_driver(cluster: str, folder: Path) -> Driver:
    """The driver for `--cluster`. Raises Invalid for what this version cannot drive."""
    if cluster in ("auto", "local"):
        return LocalDriver(folder)
    raise Invalid(f"--cluster {cluster}: this version runs on one machine; use --cluster local or auto")
