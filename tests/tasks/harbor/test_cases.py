"""Outcomes of sixteen folders."""

from __future__ import annotations

import pytest

from rollyard.core.errors import TaskError
from tests.support.harbor_folders import CASES, HarborCase
from tests.tasks.harbor.conftest import HarborSite

pytestmark = pytest.mark.asyncio(loop_scope="module")
ATTACKED = {name: case for name, case in CASES.items() if case.attack}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_honest_work(site: HarborSite, case: HarborCase) -> None:
    work = case.work if len(case.work) > 1 else case.work[0]
    if case.reward is None:
        with pytest.raises(TaskError):
            await site.score(case.folder, work)
    else:
        assert (await site.score(case.folder, work)).reward == case.reward


@pytest.mark.parametrize("case", ATTACKED.values(), ids=ATTACKED.keys())
async def test_an_attack_gets_0(site: HarborSite, case: HarborCase) -> None:
    assert (await site.score(case.folder, case.attack)).reward == 0.0
