"""Task folders in the manner of terminal benchmarks: their solutions get 1, and nothing gets 0."""

from __future__ import annotations

import pytest

from tests.support.harbor_bench_folders import without_build
from tests.tasks.harbor.conftest import HarborSite

pytestmark = pytest.mark.asyncio(loop_scope="module")
LOOSE = ("three-faults", "missed-jobs", "dirty-orders", "sealed-letter", "health-service")
"""Folders whose files need no build."""


@pytest.mark.parametrize("name", [LOOSE[0], *(pytest.param(name, marks=pytest.mark.long) for name in LOOSE[1:])])
async def test_the_solution_alone_gets_the_reward(site: HarborSite, name: str) -> None:
    folder = without_build(name)
    assert (await site.score(folder, None)).reward == 1.0
    assert (await site.score(folder, "true")).reward == 0.0
