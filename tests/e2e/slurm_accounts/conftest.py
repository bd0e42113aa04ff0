"""A field on a cluster with accounts, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.slurm_field import QUICK, Field, field_of


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def begun(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_of(tmp_path_factory, accounting=True, conf=(*QUICK, "KillWait=3")) as found:
        await found.begin()
        async with found.watched():
            yield found


@pytest_asyncio.fixture(loop_scope="package")
async def field(begun: Field) -> Field:
    """Each test finds it as it began."""
    await begun.restore()
    return begun
