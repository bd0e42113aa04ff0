"""A Python that every account of this machine can run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rollyard.host.sandbox_account import sandbox_account

ROOT = Path(__file__).parents[2]


def open_python() -> tuple[str, str]:
    """Return a Python that other users can run, and its PYTHONPATH."""
    modules = next(path for path in sys.path if path.endswith("site-packages"))
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        paths = [Path(python).resolve(), Path(modules), ROOT]
        if all(path.exists() and sandbox_account().can_reach(path) for path in paths):
            return python, f"{ROOT}:{modules}"
    pytest.skip("other users can run no Python that has our packages")
