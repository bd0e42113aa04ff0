"""A fixture: a real sandbox without an image, with bubblewrap."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory

LIMITS = Limits(cpus=1, memory_bytes=512 << 20, disk_bytes=32 << 20, processes=64)


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with (
        SandboxFactory(find_runtime("bubblewrap")) as factory,
        await factory.start(SandboxSpec(None, LIMITS)) as own,
    ):
        yield own
