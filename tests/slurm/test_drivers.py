"""The contract of base.py for every driver, on every Slurm, with real jobs."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import Refusal, SlurmUnreachable, SubmitRefused
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import Job
from tests.support.cluster import Cluster, NewCluster
from tests.support.driver_cases import EVERYWHERE, ON_SLURM, Case, Clusters, Ground, ground_of, open_cli
from tests.support.job_history import NAME, History

pytestmark = pytest.mark.slow(180)

Histories = Callable[[Cluster], History]


@pytest.fixture(scope="session")
def histories() -> Histories:
    made: dict[Path, History] = {}

    def of(cluster: Cluster) -> History:
        if cluster.folder not in made:
            made[cluster.folder] = History(cluster)
        return made[cluster.folder]

    return of


async def shared(case: Case | None, tmp_path: Path, clusters: Clusters, histories: Histories) -> AsyncIterator[Ground]:
    cluster = None if case is None else clusters(**case.options)
    if cluster is not None:
        await asyncio.to_thread(histories, cluster)  # the first thing done to it: some of that takes half a minute
    async with ground_of(case, tmp_path, cluster) as ground:
        yield ground


@pytest.fixture(params=EVERYWHERE)
async def ground(
    request: pytest.FixtureRequest, tmp_path: Path, clusters: Clusters, histories: Histories
) -> AsyncIterator[Ground]:
    """Each driver, the local one too."""
    async for made in shared(request.param, tmp_path, clusters, histories):
        yield made


@pytest.fixture(params=ON_SLURM)
async def slurm(
    request: pytest.FixtureRequest, tmp_path: Path, clusters: Clusters, histories: Histories
) -> AsyncIterator[Ground]:
    """Each driver that talks to a Slurm."""
    async for made in shared(request.param, tmp_path, clusters, histories):
        yield made


async def test_jobs_end_with_slurms_state_and_exit_code(ground: Ground) -> None:
    before = int(time.time())
    commands = {"exit 0": (JobState.COMPLETED, 0), "exit 7": (JobState.FAILED, 7), "kill -9 $$": (JobState.FAILED, 137)}
    ids = {command: await ground.submit(command) for command in commands}
    assert len(set(ids.values())) == len(commands)
    for command, (state, code) in commands.items():
        job = await ground.ended(ids[command])
        assert (job.id, job.state, job.exit_code) == (ids[command], state, code)
        assert (job.name, job.comment, job.restart_count) == ("rollyard-t-0", "rollyard:server:uid", 0)
        assert job.submit_time is not None
        assert job.start_time is not None
        assert job.end_time is not None
        assert before <= job.submit_time <= job.start_time <= job.end_time <= time.time() + 1


async def test_a_job_that_runs_has_a_node_and_an_end_and_can_be_told_to_go(ground: Ground) -> None:
    command = "trap 'echo told > told; exit 5' TERM; echo up > up; while :; do sleep 0.05; done"
    id = await ground.submit(command)
    job = await ground.state(id, JobState.RUNNING)
    assert (job.exit_code, job.reason) == (None, "")
    assert job.node in (await ground.driver.site()).nodes
    assert job.start_time is not None
    assert job.end_time is not None
    assert abs(job.end_time - job.start_time - 600) <= 1

    await ground.appears("up")
    await ground.driver.cancel([id])
    assert (await ground.ended(id)).state is JobState.CANCELLED
    assert await ground.appears("told") == "told\n"


async def test_what_is_gone_or_was_never_there_can_be_cancelled(ground: Ground) -> None:
    gone = await ground.submit("exit 0")
    assert (await ground.ended(gone)).state is JobState.COMPLETED
    id = await ground.submit("sleep 100")
    await ground.driver.cancel([])
    await ground.driver.cancel([gone, "999999", "999999_3", id])
    assert (await ground.ended(id)).state is JobState.CANCELLED
    await ground.driver.cancel([gone, "999999"], "USR1")
    assert (await ground.ended(gone)).state is JobState.COMPLETED


async def test_a_signal_reaches_the_script_and_ends_nothing(ground: Ground) -> None:
    command = "trap 'exit 3' USR1; echo 1 > up; while :; do sleep 0.05 || :; done"
    id = await ground.submit(command)
    await ground.state(id, JobState.RUNNING)
    await ground.appears("up")
    await ground.driver.cancel([id], "USR1")
    job = await ground.ended(id)
    assert (job.state, job.exit_code) == (JobState.FAILED, 3)


async def test_an_array_is_one_job_a_task_each_with_an_owner_and_a_folder(ground: Ground) -> None:
    for task in range(3):
        (ground.folder / str(task)).mkdir()
    command = 'cd "$ROLLYARD_ALLOCATION"; [ $SLURM_ARRAY_TASK_ID = 1 ] && sleep 100; pwd'
    ids = await ground.submit_all(command, tasks=3)
    array = ids[0].partition("_")[0]
    assert ids == [f"{array}_{task}" for task in range(3)]
    await ground.state(ids[1], JobState.RUNNING)
    assert (await ground.driver.list_jobs()).by_owner("rollyard:server:uid/1")[-1].id == ids[1]
    for task in (0, 2):
        assert (await ground.ended(ids[task])).state is JobState.COMPLETED
        assert (ground.folder / str(task) / "job.log").read_text() == f"{ground.folder}/{task}\n"
    await ground.driver.cancel([ids[1]])
    assert (await ground.ended(ids[1])).state is JobState.CANCELLED


async def test_a_job_works_in_its_folder_and_sees_the_servers_environment(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await ground.submit(
        'pwd; echo "$A"; echo "$SLURM_JOB_ID ${SLURM_JWT-no token} $PATH"; echo "o op" >&2', env={"A": "it's $A"}
    )
    await ground.ended(id)
    lines = (ground.folder / "job.log").read_text().splitlines()
    assert lines[:2] == [str(ground.folder), "it's $A"]
    assert lines[2].startswith(f"{id} no token ")
    assert lines[3] == "o op"


async def test_only_our_names_are_seen(ground: Ground) -> None:
    stranger = await ground.submit("sleep 100", name="someone-else")
    ours = await ground.submit("sleep 100", comment='a "comment" | of ~ mine, 100 %')
    job = await ground.state(ours, JobState.RUNNING)
    assert job.owner == 'a "comment" | of ~ mine, 100 %'
    assert stranger not in (await ground.driver.list_jobs()).jobs


@pytest.mark.skipif(os.getuid() != 0, reason="takes root: submits as another user")
async def test_what_another_user_calls_by_our_name_is_not_ours(slurm: Ground) -> None:
    wrapper = slurm.cluster.wrapper  # takes root, too: a tree is entered first
    command = (*wrapper, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    command += ("/usr/bin/sbatch" if wrapper else "sbatch", "--parsable", "--chdir=/tmp")
    options = ("--output=/dev/null", "--job-name=rollyard-t-0", "--comment=rollyard:server:uid", "--wrap=true")
    theirs = await asyncio.to_thread(slurm.cluster.run, *command, *options)
    assert await asyncio.to_thread(slurm.cluster.state, theirs)
    assert theirs not in (await slurm.driver.list_jobs()).jobs


async def test_a_job_that_waits_says_for_what(slurm: Ground) -> None:
    first = await slurm.submit("sleep 100")
    second = await slurm.submit("true", after_job=first)
    job = await slurm.until(second, lambda job: job.reason)
    assert (job.state, job.reason, job.node, job.exit_code) == (JobState.PENDING, "Dependency", "", None)
    await slurm.driver.cancel([first])
    assert (await slurm.ended(second)).state is JobState.COMPLETED


async def test_a_site_is_told_by_its_partitions_and_nodes(slurm: Ground) -> None:
    site = await slurm.driver.site()
    assert site.version.partition(".")[0].isdecimal()
    assert set(site.nodes) == {"n1", "n2", "n3", "n4"}
    node = site.nodes["n1"]
    assert (node.cpus, node.memory_bytes, node.gpus, node.usable) == (8, 16_000 << 20, 4, True)
    main, low = site.partitions["main"], site.partitions["low"]
    assert (main.up, main.default, main.nodes) == (True, True, frozenset(site.nodes))
    assert (main.max_seconds, main.max_nodes, main.accounts, main.qos) == (None, None, None, None)
    assert (low.up, low.default) == (True, False)


@pytest.fixture(params=ON_SLURM)
async def own(request: pytest.FixtureRequest, tmp_path: Path, new_cluster: NewCluster) -> AsyncIterator[Ground]:
    """Each driver on a cluster of its own, to break; it takes two seconds of silence for no answer."""
    case: Case = request.param
    cluster = await asyncio.to_thread(lambda: new_cluster(**case.options, nodes=2))
    async with ground_of(case, tmp_path, cluster, limit_seconds=2.0) as made:
        yield made


async def test_no_answer_is_no_empty_queue(own: Ground) -> None:
    assert (await own.answer(own.driver.list_jobs)).jobs == {}
    await asyncio.to_thread(own.cluster.stop_daemon, "slurmctld", signal.SIGKILL)
    await silent(own)
    await asyncio.to_thread(own.cluster.start_daemon, "slurmctld")
    before = time.time()
    found = await own.answer(own.driver.list_jobs)
    assert before <= found.taken_at <= time.time()
    own.cluster.freeze()
    await silent(own)
    own.cluster.thaw()
    # what was submitted may have been taken after all
    assert set((await own.answer(own.driver.list_jobs)).jobs) <= {"1", "2"}


async def silent(own: Ground) -> None:
    """Every call says in time that nothing is known."""
    calls = (
        own.driver.list_jobs,
        own.driver.site,
        lambda: own.driver.submit(own.script("true")),
        lambda: own.driver.cancel(["1"]),
    )
    began = time.monotonic()
    done = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
    assert [type(error) for error in done] == [SlurmUnreachable] * len(calls), done
    assert all(str(error) for error in done)
    assert time.monotonic() - began < 60


async def test_the_limits_of_a_site_and_what_is_wrong_with_it(own: Ground) -> None:
    for words in (
        "nodename=n1 state=drain reason=Dust-in-it",
        "nodename=n2 features=a100,nvlink",
        "partitionname=low state=down maxtime=1-02:00:00 maxnodes=2 allowaccounts=rl,ml nodes=n2",
    ):
        await asyncio.to_thread(own.cluster.run, "scontrol", "update", *words.split())
    site = await own.answer(own.driver.site)
    assert (site.nodes["n1"].reason, site.nodes["n1"].usable) == ("Dust-in-it", False)
    assert (site.nodes["n2"].features, site.nodes["n2"].usable) == (frozenset({"a100", "nvlink"}), True)
    low = site.partitions["low"]
    assert (low.up, low.max_seconds, low.max_nodes, low.nodes) == (False, 26 * 3600, 2, {"n2"})
    assert (low.accounts, low.qos) == (frozenset({"rl", "ml"}), None)
    assert site == await open_cli(own.cluster, 30.0).site()


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"partition": "nowhere"}, "[Ii]nvalid partition"),
        ({"gpus_per_node": 99}, "[Nn]ode configuration"),
        ({"constraint": "nothing"}, "[Ii]nvalid feature"),
        ({"extra_directives": {"begin": "the-day-before"}}, "[Ii]nvalid|begin|day-before"),
    ],
)
async def test_what_slurm_refuses_is_refused_in_its_words(slurm: Ground, template: dict[str, Any], words: str) -> None:
    with pytest.raises(SubmitRefused, match=words):
        await slurm.submit("true", **template)


@pytest.fixture(params=[param for param in ON_SLURM if param.values[0].accounting])
async def accounted(request: pytest.FixtureRequest, tmp_path: Path, clusters: Clusters) -> AsyncIterator[Ground]:
    """Each driver on a cluster that keeps accounts."""
    cluster = await asyncio.to_thread(lambda: clusters(**request.param.options, accounting=True))
    async with ground_of(request.param, tmp_path, cluster) as made:
        yield made


async def test_accounting_knows_how_jobs_ended(accounted: Ground) -> None:
    (accounted.folder / "0").mkdir()
    ended = await accounted.submit("exit 7", qos="high", gpus_per_node=2)
    (task,) = await accounted.submit_all("sleep 100", tasks=1)
    seen = {ended: await accounted.ended(ended)}
    await accounted.state(task, JobState.RUNNING)
    await accounted.driver.cancel([task])
    seen[task] = await accounted.ended(task)
    known: Mapping[str, Job] = {}
    async with asyncio.timeout(60):  # slurmctld tells slurmdbd when it finds the time to, and the end before the start
        while not (len(known) == 2 and all(job.state.ended and job.name == "rollyard-t-0" for job in known.values())):
            known = await accounted.driver.accounting([ended, task, "999999", "999999_1"])
            await asyncio.sleep(0.1)
    for id, job in known.items():
        assert (job.id, job.name, job.comment, job.state) == (id, "rollyard-t-0", seen[id].comment, seen[id].state)
        assert (job.node, job.start_time, job.end_time) == (seen[id].node, seen[id].start_time, seen[id].end_time)
    assert known[ended].state is JobState.FAILED
    me = pwd.getpwuid(os.getuid())
    assert [known[id].cancelled_by for id in (ended, task)] == ["", f"uid {me.pw_uid} ({me.pw_name})"]
    said = await open_cli(accounted.cluster, 30.0).accounting([ended, task])
    if accounted.case is not None and not accounted.case.accounting_codes:
        said = {**said, ended: replace(said[ended], exit_code=None)}
    assert known == said
    assert known[ended].exit_code in (7, None)
    accounts = await accounted.driver.accounts([ended, task, "999999", "999999_1"])
    assert accounts == await open_cli(accounted.cluster, 30.0).accounts([ended, task])
    assert accounts is not None
    for id, (run,) in accounts.items():
        assert (run.name, run.start, run.end) == ("rollyard-t-0", known[id].start_time, known[id].end_time)
        assert (run.cpus > 0, run.gpus) == (True, 2 if id == ended else 0)


async def test_a_partition_says_whose_qos_it_takes(accounted: Ground) -> None:
    for allowed, said in (("high,one", {"high", "one"}), ("ALL", None)):
        await asyncio.to_thread(accounted.cluster.run, "scontrol", "update", "partitionname=low", f"allowqos={allowed}")
        assert (await accounted.driver.site()).partitions["low"].qos == said


async def test_an_unknown_account_is_refused_in_slurms_words(accounted: Ground) -> None:
    with pytest.raises(SubmitRefused, match=r"[Ii]nvalid account"):
        await accounted.submit("true", account="nobodys")
    with pytest.raises(SubmitRefused, match=r"[Ii]nvalid qos"):
        await accounted.submit("true", qos="nobodys")


async def test_without_accounting_nothing_is_known_and_nothing_is_wrong(ground: Ground) -> None:
    id = await ground.submit("exit 0")
    await ground.ended(id)
    assert await ground.driver.accounting([id]) == {}
    assert await ground.driver.accounts([id]) is None


PLUGIN = """
function slurm_job_submit(job)
  slurm.log_user("%s", string.rep("Dear user, please read the pages of this site about accounts and projects. ", 12))
  if job.account == "closed" then return slurm.ERROR end
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
SILENT_PLUGIN = """
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


async def test_a_long_message_of_a_sites_plugin_hides_no_limit(accounted: Ground) -> None:
    cluster, limit = accounted.cluster, "modify user where account=rl set MaxSubmitJobs"
    written = cluster.folder / "job_submit.lua"
    written.write_text(PLUGIN)
    await asyncio.to_thread(cluster.configure, "JobSubmitPlugins=lua")
    try:
        await asyncio.to_thread(cluster.run, "sacctmgr", "-i", *f"{limit}=0".split())
        with pytest.raises(SubmitRefused, match=r"^Job violates accounting/QOS policy") as limited:
            await accounted.submit("true")
        await asyncio.to_thread(cluster.run, "sacctmgr", "-i", *f"{limit}=-1".split())
        with pytest.raises(SubmitRefused, match=r"^Invalid account") as final:
            await accounted.submit("true", account="nobodys")
        assert (limited.value.kind, final.value.kind) == (Refusal.LIMIT, Refusal.FINAL)
        if accounted.driver.name == "cli":  # slurmrestd of 22.05 passes no words of a plug-in on
            with pytest.raises(SubmitRefused, match=r"^Unspecified error; Dear user") as by_plugin:
                await accounted.submit("true", account="closed")
            assert by_plugin.value.kind is Refusal.FINAL
    finally:
        written.write_text(SILENT_PLUGIN)
        await asyncio.to_thread(cluster.run, "sacctmgr", "-i", *f"{limit}=-1".split())
        await asyncio.to_thread(cluster.configure, "JobSubmitPlugins=lua")


async def test_what_is_preempted_or_limited_says_so(accounted: Ground) -> None:
    low = await accounted.submit("sleep 100", nodes=4, exclusive=True)
    await accounted.state(low, JobState.RUNNING)
    high = await accounted.submit("sleep 100", nodes=4, qos="high")
    assert (await accounted.ended(low)).state is JobState.PREEMPTED
    first, second = [await accounted.submit("sleep 100", qos="one") for _ in range(2)]
    await accounted.state(high, JobState.RUNNING)
    await accounted.until(second, lambda job: job.reason == "QOSMaxJobsPerUserLimit")
    assert (await accounted.state(first, JobState.RUNNING)).reason == ""


# last, for what runs out of time takes its time


async def test_jobs_of_every_fate_are_read_as_they_are(slurm: Ground, histories: Histories) -> None:
    history = histories(slurm.cluster)
    for id, fate in history.fates.items():
        job = await slurm.until(id, lambda job, fate=fate: job.state is fate.state and job.reason in fate.reasons)
        assert job.exit_code in fate.exit_codes
        assert job.submit_time is not None


async def test_it_is_what_slurms_own_commands_say(slurm: Ground, histories: Histories) -> None:
    history = histories(slurm.cluster)
    commands = open_cli(slurm.cluster, 30.0)

    async def of_history() -> dict[str, Job]:
        return {job.id: job for job in (await commands.list_jobs()).jobs.values() if job.name == NAME}

    async with asyncio.timeout(60):
        while True:  # until nothing moves while we look; the estimated start of what waits does
            before = await of_history()
            seen = (await slurm.driver.list_jobs()).jobs
            if before == await of_history():
                break
    assert set(history.fates) <= set(before)
    assert {id: job for id, job in seen.items() if job.name == NAME} == before
