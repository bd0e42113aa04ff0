"""The local driver with real jobs: states, exit codes, limits, signals, and what survives which death."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollyard.core.errors import SlurmError, SubmitRefused
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm import local_job, local_step
from rollyard.slurm.base import BatchScript, Job
from rollyard.slurm.batch_script import FOLDER, batch_script, directives
from rollyard.slurm.local_driver import LocalDriver
from rollyard.slurm.local_job import LocalJob
from rollyard.slurm.process_identity import ProcessIdentity, start_time
from tests.support.until import until

WAIT_SECONDS = 60.0


def job(folder: Path, command: str, *, limit: str | None = None, name: str = "rollyard-t-0") -> BatchScript:
    template = AllocationTemplate(time_limit=limit or "00:10:00")
    log = str(folder / "job.log")
    return batch_script(
        template,
        name=name,
        comment="rollyard:s:u",
        log_path=log,
        directory=str(folder),
        command=["bash", "-c", command],
    )


async def submit(driver: LocalDriver, script: BatchScript) -> str:
    (id,) = await driver.submit(script)
    return id


async def job_once(driver: LocalDriver, id: str, done: Callable[[Job], bool]) -> Job:
    async def so() -> Job | None:
        found = (await driver.list_jobs()).jobs.get(id)
        return found if found is not None and done(found) else None

    return await until(so, WAIT_SECONDS)


async def appears(path: Path) -> str:
    """The text of a file that a job writes in one go."""
    return str(await until(lambda: path.exists() and path.read_text(), WAIT_SECONDS))


async def ended(driver: LocalDriver, id: str) -> Job:
    return await job_once(driver, id, lambda j: j.state.ended)


@pytest.fixture
def driver(tmp_path: Path) -> LocalDriver:
    return LocalDriver(tmp_path / "slurm", kill_wait=0.5)


@pytest.mark.parametrize(
    ("command", "state", "code", "reason"),
    [
        ("exit 0", JobState.COMPLETED, 0, ""),
        ("exit 7", JobState.FAILED, 7, "NonZeroExitCode"),
        ("kill -9 $$", JobState.FAILED, 137, "NonZeroExitCode"),
    ],
)
async def test_a_job_ends_with_slurms_state_and_exit_code(
    driver: LocalDriver, tmp_path: Path, command: str, state: JobState, code: int, reason: str
) -> None:
    found = await ended(driver, await submit(driver, job(tmp_path, command)))
    assert (found.state, found.exit_code, found.reason, found.comment) == (state, code, reason, "rollyard:s:u")


async def test_a_job_sees_slurms_environment_and_writes_to_its_log(driver: LocalDriver, tmp_path: Path) -> None:
    id = await submit(driver, job(tmp_path, "echo $SLURM_JOB_ID $SLURM_RESTART_COUNT $SLURMD_NODENAME; echo oops >&2"))
    await ended(driver, id)
    assert (tmp_path / "job.log").read_text().splitlines() == [f"{id} 0 {os.uname().nodename}", "oops"]


async def test_a_time_limit_ends_the_job_even_when_it_is_deaf_to_term(driver: LocalDriver, tmp_path: Path) -> None:
    found = await ended(
        driver, await submit(driver, job(tmp_path, "trap '' TERM; sleep 60 & wait; sleep 60", limit="0-00:00:01"))
    )
    assert found.state is JobState.TIMEOUT


async def test_cancel_ends_the_job_and_everything_it_left_behind(driver: LocalDriver, tmp_path: Path) -> None:
    wait = "while ! [ -s daemon ]; do sleep 0.01; done; echo 1 > up; sleep 300"
    daemon = f"setsid bash -c 'echo $$ > daemon; exec sleep 300' & {wait}"
    id = await submit(driver, job(tmp_path, daemon))
    await appears(tmp_path / "up")
    await driver.cancel([id, "99999", "../x"])
    assert (await ended(driver, id)).state is JobState.CANCELLED
    assert start_time(int((tmp_path / "daemon").read_text())) is None


async def test_a_signal_reaches_the_job_without_ending_it(driver: LocalDriver, tmp_path: Path) -> None:
    id = await submit(driver, job(tmp_path, "trap 'echo got; exit 3' USR1; echo 1 > up; while :; do sleep 0.05; done"))
    await appears(tmp_path / "up")
    await driver.cancel([id], "USR1")
    found = await ended(driver, id)
    assert (found.state, found.exit_code) == (JobState.FAILED, 3)


async def test_a_job_that_ends_takes_its_daemons_with_it(driver: LocalDriver, tmp_path: Path) -> None:
    daemon = "(setsid setsid bash -c 'echo $$ > daemon; exec sleep 300' &) ; while ! [ -s daemon ]; do sleep 0.01; done"
    assert (await ended(driver, await submit(driver, job(tmp_path, daemon)))).state is JobState.COMPLETED
    assert start_time(int((tmp_path / "daemon").read_text())) is None


async def test_a_cancel_is_heard_by_the_leader_which_ends_its_children_in_its_own_order(tmp_path: Path) -> None:
    driver = LocalDriver(tmp_path / "slurm", kill_wait=60.0)  # on a busy machine the leader may need seconds
    child = (
        "trap 'echo TERM >> log' TERM; trap 'echo USR1 >> log; exit' USR1; echo 1 > up; while :; do sleep 0.02; done"
    )
    leader = f"trap 'kill -USR1 $!; wait; exit 5' TERM; ( {child} ) & wait"
    id = await submit(driver, job(tmp_path, leader))
    await appears(tmp_path / "up")
    await driver.cancel([id])
    found = await ended(driver, id)
    assert (found.state, found.exit_code) == (JobState.CANCELLED, 5)
    assert (tmp_path / "log").read_text() == "USR1\n"


async def test_a_job_outlives_the_process_that_submitted_it(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from pathlib import Path
from tests.slurm.test_local_driver import job, submit
from rollyard.slurm.local_driver import LocalDriver
folder = Path({str(tmp_path)!r})
print(asyncio.run(submit(LocalDriver(folder / "slurm"), job(folder, "sleep 300"))), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    driver = LocalDriver(tmp_path / "slurm", kill_wait=0.5)
    id = killed.stdout.strip()
    before = await job_once(driver, id, lambda j: j.state is JobState.RUNNING)
    assert before.node == os.uname().nodename
    await driver.cancel([id])
    assert (await ended(driver, id)).state is JobState.CANCELLED


async def test_a_job_whose_step_was_killed_runs_on_and_can_be_cancelled(driver: LocalDriver, tmp_path: Path) -> None:
    id = await submit(driver, job(tmp_path, "sleep 300"))
    await job_once(driver, id, lambda j: j.state is JobState.RUNNING)
    folder = tmp_path / "slurm" / "jobs" / id
    ProcessIdentity.of(json.loads((folder / "step.json").read_text())).kill(signal.SIGKILL)
    assert (await job_once(driver, id, lambda j: True)).state is JobState.RUNNING
    await driver.cancel([id])
    assert (await ended(driver, id)).state is JobState.CANCELLED


async def test_a_job_that_died_with_its_step_is_a_node_failure(driver: LocalDriver, tmp_path: Path) -> None:
    id = await submit(driver, job(tmp_path, "sleep 300"))
    await job_once(driver, id, lambda j: j.state is JobState.RUNNING)
    folder = tmp_path / "slurm" / "jobs" / id
    for name in ("step", "run"):
        ProcessIdentity.of(json.loads((folder / f"{name}.json").read_text())).kill(signal.SIGKILL)
    assert (await ended(driver, id)).state is JobState.NODE_FAIL


async def test_a_job_without_a_step_still_has_its_time_limit(driver: LocalDriver, tmp_path: Path) -> None:
    id = await submit(driver, job(tmp_path, "trap '' TERM; sleep 300", limit="0-00:00:01"))
    await job_once(driver, id, lambda j: j.state is not JobState.PENDING)
    step = tmp_path / "slurm" / "jobs" / id / "step.json"
    ProcessIdentity.of(json.loads(step.read_text())).kill(signal.SIGKILL)
    assert (await ended(driver, id)).state is JobState.TIMEOUT


async def test_what_a_lost_job_left_behind_is_ended_with_it(driver: LocalDriver, tmp_path: Path) -> None:
    id = await submit(driver, job(tmp_path, "setsid bash -c 'echo $$ > daemon; exec sleep 300' & exec sleep 300"))
    daemon = int(await appears(tmp_path / "daemon"))
    folder = tmp_path / "slurm" / "jobs" / id
    for name in ("step", "run"):
        ProcessIdentity.of(json.loads((folder / f"{name}.json").read_text())).kill(signal.SIGKILL)
    assert (await ended(driver, id)).state is JobState.NODE_FAIL
    await until(lambda: start_time(daemon) is None)  # its environment goes a moment before it


@pytest.fixture
def submitted(tmp_path: Path, driver: LocalDriver) -> LocalJob:
    """State left by a submit that was killed before it handed the job to a step."""
    folder = tmp_path / "slurm" / "jobs" / "7"
    folder.mkdir()
    facts = {"directory": str(tmp_path), "output": str(tmp_path / "job.log"), "time_limit": 60, "kill_wait": 0.5}
    made = LocalJob(folder)
    made.create("touch ran", name="rollyard-t-0", comment="c", cpus="1", node="n", **facts)
    return made


async def test_a_submit_that_was_killed_half_way_is_pending_and_then_failed_for_good(
    driver: LocalDriver, submitted: LocalJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await driver.list_jobs()).jobs["7"].state is JobState.PENDING
    monkeypatch.setattr(local_job, "START_SECONDS", 0.0)
    found = (await driver.list_jobs()).jobs["7"]
    assert (found.state, found.exit_code, found.reason) == (JobState.FAILED, 1, "JobLaunchFailure")
    late = subprocess.run([sys.executable, "-I", "-S", local_step.__file__, str(submitted.folder)], check=True)
    assert late.returncode == 0
    assert not (submitted.folder / "run.json").exists()


async def test_a_job_cancelled_before_its_step_began_never_runs(
    driver: LocalDriver, submitted: LocalJob, tmp_path: Path
) -> None:
    await driver.cancel(["7"])
    submitted.start()
    assert (await ended(driver, "7")).state is JobState.CANCELLED
    assert not (tmp_path / "ran").exists()


async def test_a_folder_that_is_not_a_job_yet_is_ignored_and_in_the_end_cleared_away(
    driver: LocalDriver, tmp_path: Path
) -> None:
    folder = tmp_path / "slurm" / "jobs" / "1"
    folder.mkdir()
    (folder / "script").write_text("#!/bin/bash\n")
    assert (await driver.list_jobs()).jobs == {}
    assert folder.exists()
    os.utime(folder, (1, 1))
    await driver.list_jobs()
    assert not folder.exists()


async def test_a_script_that_cannot_be_started_is_a_failed_job_that_says_why(
    driver: LocalDriver, tmp_path: Path
) -> None:
    script = job(tmp_path, "true")
    id = await submit(driver, dataclasses.replace(script, text=script.text.replace("job.log", "nowhere/job.log")))
    found = await ended(driver, id)
    assert (found.state, found.reason) == (JobState.FAILED, "JobLaunchFailure")


async def test_a_job_does_not_inherit_the_identity_of_the_servers_own_job(
    driver: LocalDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    await ended(driver, await submit(driver, job(tmp_path, "echo ${SLURM_ARRAY_TASK_ID-none}")))
    assert (tmp_path / "job.log").read_text() == "none\n"


async def test_a_stranger_with_a_pid_of_ours_is_left_alone(driver: LocalDriver, tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        id = await submit(driver, job(tmp_path, "exit 0"))
        await ended(driver, id)
        folder = tmp_path / "slurm" / "jobs" / id
        (folder / "end.json").unlink()
        forged = {**local_step.process_identity(stranger.pid), "start": 1, "start_time": time.time()}
        for name in ("step", "run"):
            local_step.write(folder / f"{name}.json", forged)
        fresh = LocalDriver(tmp_path / "slurm")
        await fresh.cancel([id])
        assert (await ended(fresh, id)).state is JobState.CANCELLED
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_only_our_names_are_seen_and_old_jobs_are_forgotten(tmp_path: Path) -> None:
    driver = LocalDriver(tmp_path / "slurm", min_job_age=0.0)
    await submit(driver, job(tmp_path, "sleep 0.2", name="someone-else"))
    id = await submit(driver, job(tmp_path, "exit 0"))
    async with asyncio.timeout(WAIT_SECONDS):
        while os.listdir(tmp_path / "slurm" / "jobs"):
            assert all(j.id == id for j in (await driver.list_jobs()).jobs.values())
            await asyncio.sleep(0.02)


async def test_ids_are_distinct_under_concurrent_submits_of_two_processes(driver: LocalDriver, tmp_path: Path) -> None:
    program = f"""
import asyncio
from pathlib import Path
from tests.slurm.test_local_driver import job, submit
from rollyard.slurm.local_driver import LocalDriver
folder = Path({str(tmp_path)!r})
driver = LocalDriver(folder / "slurm")
async def main():
    print(*await asyncio.gather(*(submit(driver, job(folder, "exit 0")) for _ in range(5))))
asyncio.run(main())
"""
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    ours = await asyncio.gather(*(submit(driver, job(tmp_path, "exit 0")) for _ in range(5)))
    said, _ = await asyncio.wait_for(other.communicate(), WAIT_SECONDS)
    ids = {*ours, *said.decode().split()}
    assert len(ids) == 10
    for id in ids:
        await ended(driver, id)


async def test_an_id_is_not_given_twice_when_the_counter_is_lost(driver: LocalDriver, tmp_path: Path) -> None:
    first = await submit(driver, job(tmp_path, "exit 0"))
    await ended(driver, first)
    (tmp_path / "slurm" / "next-id").unlink()
    second = await submit(driver, job(tmp_path, "exit 0"))
    await ended(driver, second)
    assert first != second


async def test_a_folder_that_is_not_there_is_refused(driver: LocalDriver, tmp_path: Path) -> None:
    with pytest.raises(SubmitRefused, match="chdir"):
        await submit(driver, job(tmp_path / "nowhere", "exit 0"))


@pytest.mark.parametrize(
    ("directive", "words"),
    [("--nodes=2", "node configuration"), ("--time=soon", "--time"), ('--comment="a', "directive")],
)
async def test_what_slurm_would_refuse_is_refused(
    driver: LocalDriver, tmp_path: Path, directive: str, words: str
) -> None:
    script = job(tmp_path, "true")
    wrong = dataclasses.replace(script, text=script.text.replace("\n:", f"\n#SBATCH {directive}\n:"))
    with pytest.raises(SubmitRefused, match=words):
        await submit(driver, wrong)
    assert (await driver.list_jobs()).jobs == {}


async def test_an_unknown_signal_is_refused(driver: LocalDriver) -> None:
    with pytest.raises(SlurmError, match="Unknown job signal: X"):
        await driver.cancel([], "X")


def test_directives_are_read_as_sbatch_reads_them() -> None:
    text = '#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --comment="a b"\n\nexec true\n#SBATCH --time=9\n'
    assert directives(text) == {"time": "01:00:00", "comment": "a b"}


async def test_a_task_of_an_array_works_in_its_own_folder(driver: LocalDriver, tmp_path: Path) -> None:
    for task in range(3):
        (tmp_path / f"real-{task}").mkdir()
        (tmp_path / str(task)).symlink_to(f"real-{task}")
    script = batch_script(
        AllocationTemplate(),
        name="rollyard-t",
        comment="rollyard:s:burst",
        log_path=str(tmp_path / "job.log"),
        directory=str(tmp_path),
        command=["bash", "-c", 'echo "$0"', FOLDER],
        tasks=3,
    )
    ids = await driver.submit(script)
    array = ids[0].partition("_")[0]
    assert ids == [f"{array}_{task}" for task in range(3)]
    for task, id in enumerate(ids):
        assert (await ended(driver, id)).owner == f"rollyard:s:burst/{task}"
        assert (tmp_path / f"real-{task}" / "job.log").read_text() == f"{tmp_path}/real-{task}\n"
