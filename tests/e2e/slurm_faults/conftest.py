"""A field on a cluster without accounts, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.slurm_field import QUICK, Field, field_of


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def begun(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_of(tmp_path_factory, conf=QUICK) as found:
        found.shims.order("squeue", "record")  # a table without jobs, for `replay`
        recorded = found.shims.folder / "squeue.recorded"

        async def has_table() -> bool:
            return recorded.exists() and recorded.stat().st_size > 0

        await found.yard.until(has_table)
        await found.begin()
        async with found.watched():
            yield found


@pytest_asyncio.fixture(loop_scope="package")
async def field(begun: Field) -> Field:
    """Each test finds it as it began."""
    await begun.restore()
    return begun
