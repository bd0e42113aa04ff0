"""The local driver with real jobs: states, exit codes, limits, signals, and what survives which death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollyard.errors import SubmitRefused
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.slurm import local_step
from rollyard.slurm.base import BatchScript, Job, JobState
from rollyard.slurm.local import LocalDriver, directives
from rollyard.slurm.process import ProcessProof, start_time
from rollyard.slurm.script import batch_script

WAIT_SECONDS = 20.0


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


async def until(driver: LocalDriver, id: str, done: Callable[[Job], bool]) -> Job:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = (await driver.snapshot()).jobs.get(id)
            if found is not None and done(found):
                return found
            await asyncio.sleep(0.02)


async def ended(driver: LocalDriver, id: str) -> Job:
    return await until(driver, id, lambda j: j.state.ended)


@pytest.fixture
def driver(tmp_path: Path) -> LocalDriver:
    return LocalDriver(tmp_path / "slurm", kill_wait=0.5)


@pytest.mark.parametrize(
    ("command", "state", "code"),
    [
        ("exit 0", JobState.COMPLETED, 0),
        ("exit 7", JobState.FAILED, 7),
        ("kill -9 $$", JobState.FAILED, 137),
    ],
)
async def test_a_job_ends_with_slurms_state_and_exit_code(
    driver: LocalDriver, tmp_path: Path, command: str, state: JobState, code: int
) -> None:
    found = await ended(driver, await driver.submit(job(tmp_path, command)))
    assert (found.state, found.exit_code, found.comment) == (state, code, "rollyard:s:u")


async def test_a_job_sees_slurms_environment_and_writes_to_its_log(driver: LocalDriver, tmp_path: Path) -> None:
    id = await driver.submit(job(tmp_path, "echo $SLURM_JOB_ID $SLURM_RESTART_COUNT $SLURMD_NODENAME; echo oops >&2"))
    await ended(driver, id)
    assert (tmp_path / "job.log").read_text().splitlines() == [f"{id} 0 {os.uname().nodename}", "oops"]


async def test_a_time_limit_ends_the_job_even_when_it_is_deaf_to_term(driver: LocalDriver, tmp_path: Path) -> None:
    found = await ended(
        driver, await driver.submit(job(tmp_path, "trap '' TERM; sleep 60 & wait; sleep 60", limit="0-00:00:01"))
    )
    assert found.state is JobState.TIMEOUT


async def test_cancel_ends_the_job_and_everything_it_left_behind(driver: LocalDriver, tmp_path: Path) -> None:
    wait = "while ! [ -s daemon ]; do sleep 0.01; done; touch up; sleep 300"
    daemon = f"setsid bash -c 'echo $$ > daemon; exec sleep 300' & {wait}"
    id = await driver.submit(job(tmp_path, daemon))
    async with asyncio.timeout(WAIT_SECONDS):
        while not (tmp_path / "up").exists():
            await asyncio.sleep(0.02)
    await driver.cancel([id, "99999", "../x"])
    assert (await ended(driver, id)).state is JobState.CANCELLED
    assert start_time(int((tmp_path / "daemon").read_text())) is None


async def test_a_signal_reaches_the_job_without_ending_it(driver: LocalDriver, tmp_path: Path) -> None:
    id = await driver.submit(job(tmp_path, "trap 'echo got; exit 3' USR1; touch up; while :; do sleep 0.05; done"))
    async with asyncio.timeout(WAIT_SECONDS):
        while not (tmp_path / "up").exists():
            await asyncio.sleep(0.02)
    await driver.cancel([id], "USR1")
    found = await ended(driver, id)
    assert (found.state, found.exit_code) == (JobState.FAILED, 3)


async def test_a_job_outlives_the_process_that_submitted_it(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from pathlib import Path
from tests.slurm.test_local_driver import job
from rollyard.slurm.local import LocalDriver
folder = Path({str(tmp_path)!r})
print(asyncio.run(LocalDriver(folder / "slurm").submit(job(folder, "sleep 300"))), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    driver = LocalDriver(tmp_path / "slurm", kill_wait=0.5)
    id = killed.stdout.strip()
    before = await until(driver, id, lambda j: j.state is JobState.RUNNING)
    assert before.node == os.uname().nodename
    await driver.cancel([id])
    assert (await ended(driver, id)).state is JobState.CANCELLED


async def test_a_job_whose_step_was_killed_runs_on_and_can_be_cancelled(driver: LocalDriver, tmp_path: Path) -> None:
    id = await driver.submit(job(tmp_path, "sleep 300"))
    await until(driver, id, lambda j: j.state is JobState.RUNNING)
    folder = tmp_path / "slurm" / "jobs" / id
    ProcessProof.of(json.loads((folder / "step.json").read_text())).kill(signal.SIGKILL)
    assert (await until(driver, id, lambda j: True)).state is JobState.RUNNING
    await driver.cancel([id])
    assert (await ended(driver, id)).state is JobState.CANCELLED


async def test_a_job_that_died_with_its_step_is_a_node_failure(driver: LocalDriver, tmp_path: Path) -> None:
    id = await driver.submit(job(tmp_path, "sleep 300"))
    await until(driver, id, lambda j: j.state is JobState.RUNNING)
    folder = tmp_path / "slurm" / "jobs" / id
    for name in ("step", "run"):
        ProcessProof.of(json.loads((folder / f"{name}.json").read_text())).kill(signal.SIGKILL, group=name == "run")
    assert (await ended(driver, id)).state is JobState.NODE_FAIL


async def test_a_stranger_with_a_pid_of_ours_is_left_alone(driver: LocalDriver, tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        id = await driver.submit(job(tmp_path, "exit 0"))
        await ended(driver, id)
        folder = tmp_path / "slurm" / "jobs" / id
        (folder / "end.json").unlink()
        forged = {**local_step.proof(stranger.pid), "start": 1, "start_time": time.time()}
        for name in ("step", "run"):
            local_step.write(folder / f"{name}.json", forged)
        fresh = LocalDriver(tmp_path / "slurm")
        await fresh.cancel([id])
        assert (await ended(fresh, id)).state is JobState.NODE_FAIL
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_only_our_names_are_seen_and_old_jobs_are_forgotten(tmp_path: Path) -> None:
    driver = LocalDriver(tmp_path / "slurm", min_job_age=0.0)
    await driver.submit(job(tmp_path, "sleep 0.2", name="someone-else"))
    id = await driver.submit(job(tmp_path, "exit 0"))
    async with asyncio.timeout(WAIT_SECONDS):
        while os.listdir(tmp_path / "slurm" / "jobs"):
            assert all(j.id == id for j in (await driver.snapshot()).jobs.values())
            await asyncio.sleep(0.02)


async def test_ids_are_distinct_under_concurrent_submits(driver: LocalDriver, tmp_path: Path) -> None:
    other = LocalDriver(tmp_path / "slurm")
    ids = await asyncio.gather(*(d.submit(job(tmp_path, "exit 0")) for d in (driver, other) for _ in range(5)))
    assert len(set(ids)) == 10
    for id in ids:
        await ended(driver, id)


async def test_a_folder_that_is_not_there_is_refused(driver: LocalDriver, tmp_path: Path) -> None:
    with pytest.raises(SubmitRefused, match="chdir"):
        await driver.submit(job(tmp_path / "nowhere", "exit 0"))


def test_directives_are_read_as_sbatch_reads_them() -> None:
    text = '#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --comment="a b"\n\nexec true\n#SBATCH --time=9\n'
    assert directives(text) == {"time": "01:00:00", "comment": "a b"}
