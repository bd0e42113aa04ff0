"""The real API, served in the test's own process; and whole yards whose pool knows the task kind `flaky`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.conftest import serving
from tests.support import flaky_math
from tests.support.yard import ROOT, Yard, end

__all__ = ["serving"]


def flaky_yard(folder: Path) -> Yard:
    """Make a yard, not yet started, whose pools know the task kind `flaky`."""
    made = Yard(folder)
    flaky_math.install(made.folder / "plugin")
    found = [str(made.folder / "plugin"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    made.env["PYTHONPATH"] = ":".join(found)
    return made


@pytest.fixture
async def yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    made = flaky_yard(tmp_path_factory.mktemp("yard"))
    made.start()
    yield made
    await end(made)
