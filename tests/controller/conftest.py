from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rollyard.store.object_store import ObjectStore
from rollyard.store.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store = await Store.open(tmp_path)
    yield store.objects
    await store.close()


@pytest.fixture
def beside() -> Callable[[Coroutine[Any, Any, None]], contextlib.AbstractAsyncContextManager[None]]:
    """`async with beside(x.run())`: run it during the block, and end it afterwards."""

    @contextlib.asynccontextmanager
    async def run(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        task = asyncio.create_task(work)
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    return run
