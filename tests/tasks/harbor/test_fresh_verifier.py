"""Rewards of single-step folders, whose verifier runs in a fresh sandbox with the agent's files."""

from __future__ import annotations

import pytest

from rollyard.core.errors import StageTimeout, TaskError
from tests.support.harbor_folders import FORGED, GRADE, TEST, WRITE, one_step
from tests.tasks.harbor.conftest import HarborSite

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT = 4
"""Attacks of every run. `test_cases.py` has more of them."""
ONE = "echo 1 > /logs/verifier/reward.txt"
FALSE_GREP = "printf '#!/bin/bash\\nexit 0\\n' > /bin/grep"
ATTACKS = {
    "another grep": f"rm /bin/grep; {FALSE_GREP}; chmod +x /bin/grep",
    "another grep that comes first": "mkdir -p /usr/local/bin; printf '#!/bin/bash\\nexit 0\\n' > /usr/local/bin/grep; "
    "chmod +x /usr/local/bin/grep",
    "another bash": f"cp /bin/bash /b; printf '#!/b\\n{ONE}\\n' > /new; chmod +x /new; rm /bin/bash; mv /new /bin/bash",
    "a test script": f"mkdir -p /tests; printf '#!/bin/bash\\n{ONE}\\n' > /tests/test.sh; chmod -w /tests/test.sh",
    "nothing": "true",
    "a reward file": FORGED,
    "a reward file that comes back": f"(while true; do {FORGED}; done) >/dev/null 2>&1 & sleep 0.1",
    "a link in the place of the logs": f"rm -rf /logs; mkdir -p /x/verifier; ln -s /x /logs; {FORGED}",
    "a link in the place of the verifier's logs": f"rm -rf /logs/verifier; mkdir /x; ln -s /x /logs/verifier; {FORGED}",
    "a file in the place of the logs": "rm -rf /logs; echo 1 > /logs",
    "no programs": "rm -rf /bin/* /usr/bin/*",
}  # fmt: skip


@pytest.mark.parametrize("work", [*ATTACKS.values()][:SHORT], ids=[*ATTACKS][:SHORT])
async def test_no_attack_gets_the_reward(site: HarborSite, work: str) -> None:
    assert (await site.score(one_step(), work)).reward == 0.0


async def test_a_false_program_deceives_a_shared_verifier(site: HarborSite) -> None:
    assert (await site.score(one_step(), ATTACKS["another grep"], verifier="shared")).reward == 1.0


@pytest.mark.long
@pytest.mark.parametrize("site", ["bubblewrap", "apptainer"], indirect=True)
@pytest.mark.parametrize("work", ATTACKS.values(), ids=ATTACKS.keys())
async def test_no_attack_gets_it_on_any_runtime(site: HarborSite, work: str) -> None:
    assert (await site.score(one_step(), work)).reward == 0.0


async def test_right_work_and_the_reference_get_it(site: HarborSite) -> None:
    for work in (WRITE, None):
        found = await site.score(one_step(), work)
        assert (found.reward, found.parts) == (1.0, {"reward": 1.0})
        assert found.notes == ["the verifier gives reward 1", "graded 1"]


async def test_new_programs_of_the_agent_count(site: HarborSite) -> None:
    test = f"{TEST}greet > /logs/verifier/reward.txt\n"
    work = "printf '#!/bin/sh\necho 0.5\n' > /usr/bin/greet; chmod +x /usr/bin/greet"
    assert (await site.score(one_step(test=test), work)).reward == 0.5


@pytest.mark.parametrize(("script", "expected"), [("exit 3", 0.25), ("echo '{' > $L/reward.json", "is no JSON")])
async def test_reward_files(site: HarborSite, script: str, expected: float | str) -> None:
    written = "L=/logs/verifier; echo 1 > $L/reward.txt; echo '{\"reward\": 0.25}' > $L/reward.json"
    folder = one_step(test=f"{TEST}{written}\n{script}\n")
    if isinstance(expected, float):
        assert (await site.score(folder, "true")).reward == expected
    else:
        with pytest.raises(TaskError, match=expected):
            await site.score(folder, "true")


async def test_the_key_that_counts_can_be_named(site: HarborSite) -> None:
    folder = one_step(test=f'{TEST}echo \'{{"a": 1, "b": 0.5}}\' > /logs/verifier/reward.json\n')
    found = await site.score(folder, "true", reward_key="b")
    assert (found.reward, found.parts) == (0.5, {"a": 1.0, "b": 0.5})


async def test_a_verifier_that_the_agent_breaks_gives_0(site: HarborSite) -> None:
    test = f"{TEST}[ -e /work/stop ] || echo 1 > /logs/verifier/reward.txt\n"
    found = await site.score(one_step(test=test), "touch /work/stop")
    assert (found.reward, found.metrics["verifier_failed"]) == (0.0, 1.0)


async def test_time_of_the_verifier(site: HarborSite) -> None:
    slow = f"{TEST}[ -e /work/answer.txt ] || sleep 60\n{GRADE}"
    limited = one_step("[verifier]\ntimeout_sec = 2\n", slow)
    assert (await site.score(limited, "true")).metrics == {"verifier_failed": 1.0, "timed_out": 1.0}
    with pytest.raises(StageTimeout, match=r"stages\.eval\.timeoutSeconds"):
        await site.score(one_step(test=slow), "true", seconds=2)
    with pytest.raises(TaskError, match="took more than 1 s"):
        await site.score(one_step("[verifier]\ntimeout_sec = 1\n", f"{TEST}sleep 60\n"), WRITE)


async def test_variables_users_and_folders(site: HarborSite) -> None:
    config = (
        '[environment.env]\nKEY = "${TOKEN}"\n[agent]\nuser = 1234\n[verifier]\nuser = "root"\n'
        '[verifier.env]\nMORE = "${MORE:-none}"\n'
    )
    test = (
        f"{TEST}[ \"$KEY $MORE $(whoami) $PWD\" = 'abc none root /work' ] && grep -qx 'abc 1234 /work' /work/seen && "
    )
    folder = one_step(config, f"{test}echo 1 > /logs/verifier/reward.txt\n")
    work = 'echo "$KEY $(id -u) $PWD" > seen'
    found = await site.score(folder, work, variables={"TOKEN": "abc", "UNUSED": "x"})
    assert found.reward == 1.0
