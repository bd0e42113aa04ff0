"""The pyslurm driver: a child that dies, hangs or talks nonsense costs a call and no more; and what pyslurm gets wrong."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.core.errors import Invalid, SlurmUnreachable
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm import pyslurm_child
from rollyard.slurm.base import JobListing
from rollyard.slurm.choose_driver import choose_driver, slurm_driver
from rollyard.slurm.pyslurm_driver import PYTHON_VARIABLE, PyslurmDriver, read_jobs, read_site, why_unfit
from rollyard.slurm.pyslurm_process import PyslurmProcess
from tests.support.cluster import Cluster, NewCluster
from tests.support.driver_cases import open_cli, open_pyslurm
from tests.support.until import until

pytestmark = pytest.mark.slow(60)

LIMIT_SECONDS = 2.0
PATIENT_SECONDS = 60.0
"""For a child that answers, which on a busy machine takes seconds."""


def shell(script: str) -> tuple[str, ...]:
    """In place of a Python that has pyslurm."""
    return ("/bin/sh", "-c", script)


def process(*command: str, limit_seconds: float = LIMIT_SECONDS) -> PyslurmProcess:
    return PyslurmProcess(command, dict(os.environ), limit_seconds=limit_seconds)


def test_the_child_can_be_run_by_an_older_python() -> None:
    source = Path(pyslurm_child.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    imported = {name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in [node.module]}
    assert not any(name and name.startswith("rollyard") for name in imported)


@pytest.mark.parametrize(
    ("ranges", "numbers"),
    [("7", [7]), ("0-3,7", [0, 1, 2, 3, 7]), ("[1-9:4,20]", [1, 5, 9, 20]), ("0", [0]), ("0xb", [0, 1, 3])],
)
def test_ranges_of_waiting_tasks_are_counted_out(ranges: str, numbers: list[int]) -> None:
    assert list(pyslurm_child.waiting(ranges)) == numbers


@pytest.mark.parametrize(
    "answer", [None, 3, [3], [{}], [{"state": "RUNNING"}], [{"state": "FAILED", "exit_code": 1, "x": 1}]]
)
def test_what_the_child_cannot_have_meant_is_no_empty_queue(answer: object) -> None:
    with pytest.raises(SlurmUnreachable, match="cannot be read"):
        read_jobs(answer)
    with pytest.raises(SlurmUnreachable, match="cannot be read"):
        read_site(answer)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo hello; exec cat >/dev/null", "an invalid answer"),
        ("echo '{}'; exec cat >/dev/null", "an invalid answer"),
        ("printf '\\377\\n'; exec cat >/dev/null", "an invalid answer"),
        ("echo 'no configuration' >&2; exit 3", "status 3: no configuration"),
        ("kill -9 $$", "status -9"),
        ("exec sleep 1000", "did not answer within 2 s"),
        ("yes '{\"id\": 0}'", "did not answer within 2 s"),
        ("sleep 1000 & exec sleep 1000", "did not answer within 2 s"),
    ],
)
async def test_a_child_that_fails_is_ended_in_time_and_holds_up_nobody(script: str, words: str) -> None:
    silent = words.startswith("did not answer")
    child = process(*shell(script), limit_seconds=LIMIT_SECONDS if silent else PATIENT_SECONDS)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(LIMIT_SECONDS / 50)
            turns += 1

    working = asyncio.create_task(others())
    async with asyncio.timeout(60):
        with pytest.raises(SlurmUnreachable, match=words):
            await child.ask("jobs", prefix="")
    working.cancel()
    assert turns > 1 or not silent  # a wait that blocked the loop would leave room for one
    assert child.pid is None
    await child.close()


async def test_a_command_that_is_not_there_is_named() -> None:
    child = process("/no/such/python")
    with pytest.raises(SlurmUnreachable, match="/no/such/python cannot be run"):
        await child.ask("jobs")
    await child.close()


async def test_calls_at_once_fail_in_time_too() -> None:
    child = process(*shell("exec sleep 1000"), limit_seconds=1.0)
    began = time.monotonic()
    calls = await asyncio.gather(*(child.ask("jobs", prefix="") for _ in range(30)), return_exceptions=True)
    assert [type(error) for error in calls] == [SlurmUnreachable] * 30
    assert time.monotonic() - began < 20, "thirty seconds is how long it takes in turn"
    await child.close()


@pytest.fixture
def sid(new_cluster: NewCluster) -> Cluster:
    """A cluster for one test, on Slurm 26.05."""
    return new_cluster(nodes=2, sid=True)


@pytest.fixture
async def driver(sid: Cluster) -> AsyncIterator[PyslurmDriver]:
    made = open_pyslurm(sid, PATIENT_SECONDS)
    yield made
    await made.close()


@pytest.fixture
async def impatient(sid: Cluster) -> AsyncIterator[PyslurmDriver]:
    made = open_pyslurm(sid, LIMIT_SECONDS)
    yield made
    await made.close()


async def answered(driver: PyslurmDriver) -> JobListing:
    """Return the first answer of a driver whose limit may be too short for this machine."""

    async def answer() -> JobListing | None:
        with contextlib.suppress(SlurmUnreachable):
            return await driver.list_jobs()
        return None

    found = await until(answer)
    assert isinstance(found, JobListing)
    return found


async def pid_of(driver: PyslurmDriver) -> int:
    """Return the pid of the child, after it has answered."""
    await answered(driver)
    assert driver.child_pid is not None
    return driver.child_pid


@pytest.mark.heavy
async def test_a_killed_child_is_followed_by_another(driver: PyslurmDriver) -> None:
    first = await pid_of(driver)
    os.kill(first, signal.SIGSTOP)
    call = asyncio.create_task(driver.list_jobs())
    await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)  # with a call under way
    with pytest.raises(SlurmUnreachable, match="status -9"):
        await call
    assert await pid_of(driver) != first


@pytest.mark.heavy
async def test_a_frozen_child_costs_its_call_the_time_limit_and_the_others_nothing(impatient: PyslurmDriver) -> None:
    first = await pid_of(impatient)
    os.kill(first, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(SlurmUnreachable, match="did not answer within 2 s"):
        await impatient.list_jobs()
    assert time.monotonic() - began < 60
    assert await pid_of(impatient) != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.heavy
async def test_garbage_from_the_child_is_no_answer(driver: PyslurmDriver) -> None:
    first = await pid_of(driver)
    links = {name: os.readlink(f"/proc/{first}/fd/{name}") for name in os.listdir(f"/proc/{first}/fd")}
    answers = next(
        fd for fd, link in links.items() if link.startswith("pipe:") and link not in (links["0"], links["2"])
    )
    with open(f"/proc/{first}/fd/{answers}", "w") as pipe:
        pipe.write("slurm: error: something\n")
    with pytest.raises(SlurmUnreachable, match="an invalid answer"):
        await driver.list_jobs()
    assert await pid_of(driver) != first


@pytest.mark.heavy
async def test_a_cancelled_call_leaves_its_answer_to_nobody(driver: PyslurmDriver) -> None:
    first = await pid_of(driver)
    os.kill(first, signal.SIGSTOP)
    call = asyncio.create_task(driver.list_jobs())
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    os.kill(first, signal.SIGCONT)
    assert set((await driver.site()).nodes) == {"n1", "n2"}
    assert driver.child_pid == first


@pytest.mark.heavy
async def test_a_configuration_that_is_not_there_is_named(sid: Cluster) -> None:
    (sid.folder / "slurm.conf").unlink()
    driver = open_pyslurm(sid, LIMIT_SECONDS)

    async def named() -> bool:
        with pytest.raises(SlurmUnreachable) as caught:
            await driver.list_jobs()
        return f"{sid.folder}/slurm" in str(caught.value)

    await until(named)
    await driver.close()


@pytest.mark.heavy
async def test_a_controller_that_moved_is_found_by_its_new_configuration(
    impatient: PyslurmDriver, sid: Cluster
) -> None:
    await answered(impatient)
    conf = sid.folder / "slurm.conf"
    text = conf.read_text()
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    sid.stop_daemon("slurmctld")
    with socket.create_server(("127.0.0.1", 0)) as free:
        conf.write_text(text.replace(port, f"SlurmctldPort={free.getsockname()[1]}"))
    sid.start_daemon("slurmctld")
    with pytest.raises(SlurmUnreachable):
        await impatient.list_jobs()
    assert (await answered(impatient)).jobs == {}


@pytest.mark.heavy
async def test_jobs_are_read_as_squeue_shows_them(driver: PyslurmDriver, sid: Cluster) -> None:
    some = ("--job-name=rollyard-t-0", "--comment=rollyard:s:u")
    far_apart = ",".join(map(str, [*range(0, 60, 3), *range(60, 300, 7)]))
    waiting = sid.submit("true", *some, "--hold", f"--array={far_apart}%2")
    running = sid.submit("sleep 100", *some, "--array=0-1", "--time=infinite")
    failed = sid.submit("exit 130", *some)
    odd = sid.submit("sleep 100", *some[:1], "--comment=" + os.fsdecode(b"caf\xe9"))
    theirs = sid.submit("sleep 100", "--job-name=" + os.fsdecode(b"rollyard-\xe9"))
    sid.submit("sleep 100", "--job-name=someone-else")
    sid.wait_for_state(failed, "FAILED")
    for task in ("0", "1"):
        sid.wait_for_state(f"{running}_{task}", "RUNNING")

    jobs = dict((await driver.list_jobs()).jobs)
    assert len([id for id in jobs if id.startswith(f"{waiting}_")]) == len(far_apart.split(","))
    assert jobs[f"{running}_0"].state is JobState.RUNNING
    assert jobs[f"{running}_0"].end_time is None
    assert jobs[failed].exit_code == 130
    assert jobs.pop(odd).comment == ""
    shown = dict((await open_cli(sid, 30.0).list_jobs()).jobs)
    del shown[odd], shown[theirs]
    assert {job for job in jobs.values() if job.state is not JobState.PENDING} == {
        job for job in shown.values() if job.state is not JobState.PENDING
    }
    assert set(jobs) == set(shown)
    assert {id: job.reason for id, job in jobs.items()} == {id: job.reason for id, job in shown.items()}


@pytest.mark.heavy
async def test_accounting_is_read_as_sacct_shows_it(new_cluster: NewCluster) -> None:
    sid = new_cluster(nodes=2, sid=True, accounting=True)
    some = ("--job-name=rollyard-t-0", "--comment=rollyard:s:u")
    failed = sid.submit("exit 130", *some)
    array = sid.submit("exit $SLURM_ARRAY_TASK_ID", *some, "--array=0-2")
    never = sid.submit("true", *some, "--hold")
    sid.run("scancel", never)
    ids = [failed, *(f"{array}_{task}" for task in range(3)), never]
    driver = open_pyslurm(sid, PATIENT_SECONDS)
    async with asyncio.timeout(60):
        while True:
            known = await driver.accounting([*ids, "999999", "999999_3", f"{array}_9"])
            # slurmdbd may learn of an end before it learns of the start, with the name
            if len(known) == len(ids) and all(job.state.ended and job.name == "rollyard-t-0" for job in known.values()):
                break
            await asyncio.sleep(0.1)
    assert [job.exit_code for job in known.values()] == [130, 0, 1, 2, 0]
    assert known == await open_cli(sid, 30.0).accounting(ids)

    sid.stop_daemon("slurmdbd")
    with pytest.raises(SlurmUnreachable):
        await driver.accounting(ids)
    assert (await driver.list_jobs()).jobs
    await driver.close()


@pytest.mark.heavy
async def test_it_fits_where_it_says_what_scontrol_says(driver: PyslurmDriver, sid: Cluster) -> None:
    assert await why_unfit(driver, open_cli(sid, 30.0)) == ""
    assert await driver.site() == await open_cli(sid, 30.0).site()
    without = PyslurmDriver({**os.environ, **sid.env}, python=(*sid.wrapper, "python3"), limit_seconds=PATIENT_SECONDS)
    assert "No module named 'pyslurm'" in await why_unfit(without, open_cli(sid, 30.0))
    await without.close()


@pytest.fixture
def on_sid(sid: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """This process finds it as a server would."""
    for name, value in sid.env.items():
        monkeypatch.setenv(name, value)
    return sid


@pytest.mark.heavy
async def test_auto_takes_it_where_it_fits(on_sid: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = await choose_driver("auto", tmp_path)
    assert driver.name == "cli"
    await driver.close()
    with pytest.raises(Invalid, match=f"No module named 'pyslurm'.*{PYTHON_VARIABLE}.*--cluster cli"):
        await choose_driver("pyslurm", tmp_path)
    assert "No module named 'pyslurm'" in (await slurm_driver())[1]["pyslurm"]

    monkeypatch.setenv(PYTHON_VARIABLE, f"{on_sid.wrapper[0]} /opt/pyslurm/bin/python")
    for cluster in ("auto", "pyslurm"):
        driver = await choose_driver(cluster, tmp_path)
        assert driver.name == "pyslurm"
        assert (await driver.list_jobs()).jobs == {}
        await driver.close()


@pytest.mark.heavy
async def test_where_slurm_is_down_auto_waits_with_the_commands(
    on_sid: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, f"{on_sid.wrapper[0]} /opt/pyslurm/bin/python")
    on_sid.stop_daemon("slurmctld")
    driver = await choose_driver("pyslurm", tmp_path)
    assert driver.name == "pyslurm"
    await driver.close()
    driver, why_not = await slurm_driver()
    assert (driver.name, set(why_not)) == ("cli", {"pyslurm"})
