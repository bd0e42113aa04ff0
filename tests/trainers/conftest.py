"""The real API, served in the test's own process; and a whole yard whose pool knows the task kind `flaky`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.api.conftest import serving
from tests.support import flaky_math
from tests.support.yard import ROOT, Yard, end

__all__ = ["serving"]


@pytest.fixture
async def yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    made = Yard(tmp_path_factory.mktemp("yard"))
    flaky_math.install(made.folder / "plugin")
    found = [str(made.folder / "plugin"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    made.env["PYTHONPATH"] = ":".join(found)
    made.start()
    yield made
    await end(made)
