from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.store import journal_mode
from rollyard.store.store import Store
from tests.support.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["local", "shared"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Store]:
    """One store on a file system known to be local (WAL), and one as on a file system that nodes may share."""
    if request.param == "shared":
        monkeypatch.setattr(journal_mode, "LOCAL", frozenset())
    store = await Store.open(tmp_path, clock)
    yield store
    await store.close()
