"""reasoning-gym beside Rollyard's packages, installed once into the tests' cache."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.tasks.gym.handler import GymHandler
from tests.support.released import unpacked


@pytest.fixture(scope="package")
def installed() -> Iterator[Path]:
    folder = unpacked("reasoning-gym", "0.1.25")
    with pytest.MonkeyPatch.context() as patch:
        # The children find it by PYTHONPATH, and `find_spec` in this process by sys.path
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)])))
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        yield folder


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def handler(installed: Path) -> AsyncIterator[GymHandler]:
    made = GymHandler()
    yield made
    await made.close()
