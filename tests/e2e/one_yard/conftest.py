"""The yard that the modules of this folder share."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from tests.support.yard import Yard


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    """A yard with the demo's pools, of one replica each, on Apptainer where it is installed."""
    yard = Yard(tmp_path_factory.mktemp("yard"))
    try:
        yard.start()
        async with yard.client() as client:
            await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1, "sandbox": {"runtime": "auto"}})
            await yard.ready(client)
            yield yard, client
    finally:
        await yard.clean_up()
