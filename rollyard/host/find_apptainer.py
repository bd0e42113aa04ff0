"""Places where this machine may have Apptainer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def apptainer_programs(cache: Path) -> list[tuple[str, str]]:
    """Return (name, program) for each place that has a program, best first.

    The places are $ROLLYARD_APPTAINER (not checked), PATH, the private installation in `cache`, and Singularity in
    PATH.
    """
    found = [
        ("apptainer", os.environ.get("ROLLYARD_APPTAINER")),
        ("apptainer", shutil.which("apptainer")),
        ("apptainer", shutil.which("apptainer", path=str(cache / "apptainer" / "bin"))),
        ("singularity", shutil.which("singularity")),
    ]
    return [(name, program) for name, program in found if program]
