"""The yard, and real Slurm where a test asks for it, for every test in this folder."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from tests.node.conftest import open_folder
from tests.support.cluster import accounting_cluster, cluster, new_cluster
from tests.support.vllm_env import vllm_python
from tests.support.yard import Yard, yard

__all__ = ["accounting_cluster", "cluster", "long_run", "new_cluster", "open_folder", "vllm_python", "yard"]


@pytest.fixture
def long_run(request: pytest.FixtureRequest) -> bool:
    """Whether faults last for the stated time, and not only until they are detected."""
    return str(request.config.option.markexpr) == "long or not long"


@pytest.fixture
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of the yard that no busy machine lets expire, for a test that counts attempts."""
    monkeypatch.setattr("tests.support.yard.LEASE_SECONDS", 30.0)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    """A yard with the demo's pools, of one replica each, on Apptainer where it is installed. The tests of a module share it."""
    yard = Yard(tmp_path_factory.mktemp("yard"))
    try:
        yard.start()
        async with yard.client() as client:
            await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1, "sandbox": {"runtime": "auto"}})
            await yard.ready(client)
            yield yard, client
    finally:
        await yard.clean_up()
