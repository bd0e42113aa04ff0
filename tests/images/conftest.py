"""One registry for all tests of a session, and folders for caches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.images.cache import ImageCache
from rollyard.images.settings import CacheSettings
from tests.support.image_registry import Front, Pusher, running_registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pusher]:
    with running_registry(tmp_path_factory.mktemp("registry")) as host:
        yield Pusher(host)


@pytest_asyncio.fixture
async def front(registry: Pusher) -> AsyncIterator[Front]:
    async with Front(registry.host) as started:
        yield started


@pytest_asyncio.fixture
async def cache(open_folder: Path) -> AsyncIterator[ImageCache]:
    made = ImageCache(open_folder / "cache", CacheSettings())
    yield made
    await made.close()
