from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.store.store import Store
from tests.support.reconciler_site import Site


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A started site that polls more often than a server would; all its jobs are ended afterwards."""
    for name in (
        "job_listings.INTERVAL_SECONDS",
        "allocation.WAIT_SECONDS",
        "job_listings.ACCOUNTING_SECONDS",
        "orphan_jobs.SWEEP_SECONDS",
    ):
        monkeypatch.setattr(f"rollyard.reconcilers.{name}", 0.2)
    store = await Store.open(tmp_path / "data")
    site = Site(tmp_path / "data", store)
    await site.start()
    yield site
    await site.stop()
    await site.end()
    await store.close()


@pytest.fixture
def one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocations that a pool makes together are submitted together, however slow the machine is."""
    monkeypatch.setattr("rollyard.reconcilers.job_submitter.GATHER_SECONDS", 0.5)
