"""A yard whose pool knows the task kind `flaky`, which the tests of this folder share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from tests.support import flaky_math
from tests.support.yard import ROOT, Yard


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    yard = Yard(tmp_path_factory.mktemp("yard"))
    flaky_math.install(yard.folder / "plugin")
    found = [str(yard.folder / "plugin"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    yard.env["PYTHONPATH"] = ":".join(found)
    yard.start()
    async with yard.client() as client:
        await yard.apply(client)
        await yard.ready(client)
        yield yard, client
    await yard.clean_up()
