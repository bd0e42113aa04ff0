"""Verifiers that are shared or separate, health checks, skills and MCP servers."""

from __future__ import annotations

import pytest

from rollyard.core.errors import Invalid, TaskError
from rollyard.tasks.own_tools import McpServer
from tests.support.harbor_folders import GRADE, TEST, WRITE, HarborFolder, one_step, two_steps
from tests.tasks.harbor.conftest import HarborSite

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_shared_verifier_sees_the_agents_processes(site: HarborSite) -> None:
    lives = "tr '\\0' ' ' < /proc/$(cat /work/pid)/cmdline | grep -q 'sleep 600'"  # the number alone may be another process's
    folder = one_step(test=f"{TEST}{lives} && echo 1 > /logs/verifier/reward.txt\n")
    work = "sleep 600 > /dev/null 2>&1 & echo $! > /work/pid"
    assert (await site.score(folder, work, verifier="shared")).reward == 1.0
    fresh = one_step(test=f"{TEST}{lives} && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n")
    assert (await site.score(fresh, work)).reward == 0.0


async def test_the_reference_solves_each_step_before_its_verifier(site: HarborSite) -> None:
    found = await site.score(two_steps(of_each="min_reward = 1\n"), None)
    assert (found.reward, found.parts) == (1.0, {"reward": 1.0})


async def test_an_agent_that_says_nothing_gets_what_nothing_gets_in_each_step(site: HarborSite) -> None:
    assert (await site.score(two_steps(), [])).reward == 0.25
    assert (await site.score(two_steps(), ["touch /work/one /work/two"])).reward == 1.0


async def test_no_step_sees_the_tests_of_the_one_before(site: HarborSite) -> None:
    work = ["true", "ls /tests /logs/verifier > /work/seen; touch /work/two"]
    test = f"{TEST}[ \"$(cat /work/seen | tr -d '\\n')\" = '/logs/verifier:/tests:' ] && echo 1 > /logs/verifier/reward.txt\n"
    folder = two_steps('multi_step_reward_strategy = "final"\n', **{"steps/two/tests/test.sh": test})
    assert (await site.score(folder, work)).reward == 1.0


async def test_a_step_whose_verifier_the_agent_breaks_counts_as_0(site: HarborSite) -> None:
    test = f"{TEST}[ -e /work/stop ] || echo 1 > /logs/verifier/reward.txt\n"
    folder = two_steps(**{"steps/two/tests/test.sh": test})
    found = await site.score(folder, ["touch /work/one", "touch /work/stop"])
    assert (found.reward, found.metrics["verifier_failed"]) == (0.5, 1.0)
    assert found.notes[0].startswith("two: the verifier wrote neither")


async def test_a_step_that_cannot_begin_ends_the_rollout_without_a_reward(site: HarborSite) -> None:
    for more in (
        {"steps/one/workdir/setup.sh": "exit 3\n"},
        {"steps/two/workdir/setup.sh": "exit 3\n"},
    ):
        with pytest.raises(TaskError, match=r"setup\.sh ended with 3 exit code"):
            await site.score(two_steps(**more), ["touch /work/one", "touch /work/two"])


async def test_a_separate_verifier_gets_the_artifacts_and_nothing_else(site: HarborSite) -> None:
    top = 'artifacts = [{source = "/out", exclude = ["*.log", "cache"]}, "/none"]\n'
    files = "find /out /logs/artifacts /work -type f -o -type l | sort | tr '\\n' ' '"
    test = (
        f'{TEST}[ "$({files})" = "/logs/artifacts/link /out/a /out/deep/b " ] && echo 1 > /logs/verifier/reward.txt\n'
    )
    folder = one_step('[verifier]\nenvironment_mode = "separate"\n', test, top)
    work = "mkdir -p /out/deep /out/cache; cd /out; touch a deep/b c.log deep/d.log cache/e /work/f"
    work += "; ln -s /etc /logs/artifacts/link"
    assert (await site.score(folder, work)).reward == 1.0
    found = await site.score(folder, "mkdir /out; head -c 5000000 /dev/urandom > /out/a")
    assert (found.reward, found.metrics) == (0.0, {"refused": 1.0})
    assert "compressed" in found.notes[0]


async def test_a_health_check_waits_for_what_starts(site: HarborSite) -> None:
    check = '[environment.healthcheck]\ncommand = "[ $(ls /work | wc -l) = 3 ] || { mktemp /work/n.XXXXXX; false; }"\n'
    check += "start_period_sec = 60\nstart_interval_sec = 0.01\nretries = 1\n"
    assert (await site.score(one_step(check), WRITE)).reward == 1.0


async def test_mcp_servers_and_skills_reach_the_agent(site: HarborSite) -> None:
    servers = (
        '[[environment.mcp_servers]]\nname = "stock"\ntransport = "stdio"\ncommand = "python3"\nargs = ["/s.py"]\n'
    )
    task = site.task(HarborFolder('[environment]\nskills_dir = "/skills"\n' + servers, one_step().files))
    assert site.handler.tools(task)[2:] == [McpServer(["python3", "/s.py"])]
    assert "/skills" in site.handler.prompt(task)[0]["content"]


async def test_lines_that_mark_an_instruction_are_left_out(site: HarborSite) -> None:
    text = "<!-- x CANARY y -->\n# canary z\n\nDo it.\n# canary\n"
    task = site.task(one_step(**{"instruction.md": text}))
    assert site.handler.prompt(task)[1]["content"] == "Do it.\n# canary\n"


REFUSED = {
    "os": (one_step('os = "windows"\n'), "`environment.os` is 'windows'"),
    "gpus": (one_step("gpus = 1\n"), "`environment.gpus`"),
    "tpu": (one_step('tpu = {type = "v6e", topology = "2x4"}\n'), "`environment.tpu`"),
    "compose": (one_step(**{"environment/docker-compose.yaml": "services: {}"}), "docker-compose.yaml"),
    "history": (one_step(**{"trajectory.json": "{}"}), "trajectory.json"),
    "history of a step": (two_steps(**{"steps/one/trajectory.json": "{}"}), "steps/one/trajectory.json"),
    "service": (one_step(top='artifacts = [{source = "/a", service = "db"}]\n'), "the service db"),
    "hook": (one_step('[[verifier.collect]]\ncommand = "a"\nservice = "db"\n'), "the service db"),
    "relative artifact": (one_step(top='artifacts = ["a"]\n'), "an absolute path"),
    "network": (one_step('network_mode = "allowlist"\nallowed_hosts = ["10.0.0.0/8"]\n'), "10.0.0.0/8"),
    "MCP": (one_step('mcp_servers = [{name = "a", url = "http://a"}]\n'), "the transport sse"),
    "no test": (HarborFolder("", {"instruction.md": "a"}), "no tests/test.sh"),
    "no instruction": (HarborFolder("", {"tests/test.sh": GRADE}), "no instruction.md"),
    "variable": (one_step('[verifier.env]\nKEY = "${HARBOR_TOKEN}"\n'), "give HARBOR_TOKEN a value"),
    "name of a variable": (one_step('[verifier.env]\n"-i" = "a"\n'), "'-i' is not the name"),
    "separate steps": (two_steps(of_each='verifier = {environment_mode = "separate"}\n'), "a separate verifier of a task with"),
}  # fmt: skip


@pytest.mark.parametrize(("folder", "message"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_not_supported_is_refused_by_its_name(
    site: HarborSite, folder: HarborFolder, message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        site.specs(site.task(folder))


async def test_one_sandbox_has_one_user_and_one_network(site: HarborSite) -> None:
    for config, message in (
        ('[agent]\nuser = "a"\n[verifier]\nuser = "b"\n', "has one user"),
        ('[agent]\nnetwork_mode = "no-network"\n', "has one network"),
    ):
        with pytest.raises(Invalid, match=message):
            site.specs(site.task(one_step(config), verifier="shared"))
    with pytest.raises(Invalid, match="set `verifier` to shared"):
        site.specs(site.task(two_steps(), verifier="fresh"))
    with pytest.raises(Invalid, match=r"it needs the host pypi\.org"):
        site.specs(site.task(one_step('network_mode = "allowlist"\nallowed_hosts = ["pypi.org"]\n')))


async def test_older_forms_of_a_task(site: HarborSite) -> None:
    folder = one_step('memory = "512M"\nstorage = "10G"\nallow_internet = false\n', top='version = "1.0"\n')
    specs = site.specs(site.task(folder))
    assert (specs.run.limits.memory_bytes, specs.run.allowed_hosts) == (512 << 20, ())
    assert specs.eval.limits.memory_bytes == 512 << 20
