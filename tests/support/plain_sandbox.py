"""Fixtures: real sandboxes without an image."""

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
    """With bubblewrap."""
    async with (
        SandboxFactory(find_runtime("bubblewrap")) as factory,
        await factory.start(SandboxSpec(None, LIMITS)) as own,
    ):
        yield own


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_sandbox() -> AsyncIterator[Sandbox]:
    """One for all tests of a module, with more room."""
    limits = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20)
    async with (
        SandboxFactory(find_runtime("auto")) as factory,
        await factory.start(SandboxSpec(None, limits)) as started,
    ):
        yield started
