"""Outcomes of sixteen folders."""

from __future__ import annotations

import pytest

from rollyard.core.errors import TaskError
from tests.support.harbor_folders import CASES, WRITE, HarborCase
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


@pytest.mark.parametrize("site", ["apptainer"], indirect=True)
async def test_apptainer_gives_the_same_outcomes(site: HarborSite) -> None:
    case, steps = CASES["a link in the place of the logs"], CASES["steps, mean"]
    assert (await site.score(case.folder, WRITE)).reward == 1.0
    assert (await site.score(case.folder, f"{case.attack}; rm -f /bin/grep; echo exit 0 > /bin/grep")).reward == 0.0
    assert (await site.score(steps.folder, steps.work)).reward == steps.reward
