"""A yard whose policy does what the programs of this folder need."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from tests.support.rehearsed_policy import rehearsed_policy
from tests.support.vllm_env import vllm_python
from tests.support.yard import Yard, yard

__all__ = ["vllm_python", "yard"]


@pytest.fixture(scope="session")
def policy() -> Path:
    return rehearsed_policy()


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def served(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    made = Yard(tmp_path_factory.mktemp("yard"))
    try:
        made.start()
        async with made.client() as client:
            await made.apply(client, demo={"replicas": 1}, policy={"replicas": 1, "model": {"path": str(policy)}})
            await made.ready(client)
            yield made, client
    finally:
        await made.clean_up()
