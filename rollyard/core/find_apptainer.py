"""Places where this machine may have Apptainer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def apptainer_programs(cache: Path) -> list[tuple[str, str]]:
    """Return (name, program) of each possible place, best first: $ROLLYARD_APPTAINER, PATH, our own private installation."""
    found = [
        ("apptainer", os.environ.get("ROLLYARD_APPTAINER")),
        ("apptainer", shutil.which("apptainer")),
        ("apptainer", shutil.which("apptainer", path=str(cache / "apptainer" / "bin"))),
        ("singularity", shutil.which("singularity")),
    ]
    return [(name, program) for name, program in found if program]
