"""The throwaway cluster: it comes up, it can be broken and mended, and it leaves nothing behind."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from deploy.slurm.throwaway.machine import missing
from deploy.slurm.throwaway.options import Options
from deploy.slurm.throwaway.process import every_process
from tests.support.cluster import Cluster, NewCluster

pytestmark = pytest.mark.slow(40)
ROOT = Path(__file__).resolve().parents[2]
LACKING = missing(Options())
needs_slurm = pytest.mark.skipif(bool(LACKING), reason=f"Slurm is not all here: no {', '.join(LACKING)}")


def devcluster(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "deploy/slurm/devcluster"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def of_folder(folder: Path) -> set[str]:
    """The command lines of live processes that were told of the folder."""
    found = set()
    for process in every_process():
        try:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in command or any(str(folder) in value for value in process.environ().values()):
            found.add(command)
    return found


@pytest.fixture
def short_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dc")


@needs_slurm
def test_up_and_down_leave_nothing_behind(short_folder: Path) -> None:
    folder = short_folder / "c"
    first = devcluster("up", folder, "--nodes", "2")
    assert first.returncode == 0, first.stderr
    assert f"export SLURM_CONF={folder}/slurm.conf" in first.stdout
    again = devcluster("up", folder)
    assert "up already" in again.stderr
    assert again.stdout == first.stdout

    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    # deaf to TERM, and no child of its slurmstepd any more
    deaf = f"trap '' TERM; (setsid sleep 4007 &) ; touch {folder}/runs; sleep 4007"
    subprocess.run(["sbatch", "--output=/dev/null", f"--wrap={deaf}"], env=env, check=True, capture_output=True)
    deadline = time.monotonic() + 120
    while not (folder / "runs").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert of_folder(folder)
    done = devcluster("down", folder)
    assert done.returncode == 0, done.stderr
    assert not of_folder(folder)
    assert str(folder) not in Path("/proc/mounts").read_text()
    shutil.rmtree(folder)


@needs_slurm
def test_a_failed_up_says_the_daemons_last_words_and_leaves_nothing(short_folder: Path) -> None:
    done = devcluster("up", short_folder / "c", "--conf", "SelectType=select/nonsense")
    assert done.returncode == 1
    assert "Can't find plugin for select/nonsense" in done.stderr
    assert not of_folder(short_folder)


@needs_slurm
def test_a_folder_of_somebody_elses_is_left_alone(short_folder: Path) -> None:
    (short_folder / "thesis.tex").touch()
    done = devcluster("up", short_folder)
    assert "name a new or an empty folder" in done.stderr
    assert devcluster("down", short_folder).returncode == 1
    assert [entry.name for entry in short_folder.iterdir()] == ["thesis.tex"]


def test_two_clusters_side_by_side(cluster: Cluster, new_cluster: NewCluster) -> None:
    other = new_cluster(nodes=1, gpus=0, conf=("MinJobAge=7",))
    job = other.submit("sleep 100")
    assert other.wait_for_state(job, "RUNNING")
    assert cluster.run("squeue", "-h") == ""
    assert "MinJobAge               = 7 sec" in other.run("scontrol", "show", "config")
    assert len(cluster.run("sinfo", "-h", "-N", "-p", "main").splitlines()) == 4


def test_a_job_gets_what_it_asked_for(cluster: Cluster) -> None:
    out = cluster.folder / "out"
    job = cluster.submit("echo $SLURM_CPUS_ON_NODE $CUDA_VISIBLE_DEVICES", f"--output={out}", "-c8", "--gres=gpu:2")
    cluster.wait_for_state(job, "COMPLETED")
    assert out.read_text().split() == ["8", "0,1"]
    with pytest.raises(AssertionError, match="Requested node configuration is not available"):
        cluster.submit("true", "-c9")


def test_a_killed_slurmctld_comes_back_with_its_jobs(new_cluster: NewCluster) -> None:
    cluster = new_cluster(nodes=2)
    job = cluster.submit("sleep 100")
    cluster.wait_for_state(job, "RUNNING")
    cluster.settle()
    cluster.stop_daemon("slurmctld", signal.SIGKILL)
    assert "slurmctld" not in cluster.pids
    cluster.start_daemon("slurmctld")
    assert cluster.state(job) == "RUNNING"
    cluster.run("scancel", job)
    cluster.wait_for_state(job, "CANCELLED")


def test_a_frozen_slurmctld_answers_again_once_it_is_thawed(cluster: Cluster) -> None:
    cluster.freeze()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            cluster.run("squeue", seconds=0.5)
    finally:
        cluster.thaw()
    assert cluster.run("squeue", "-h") == ""


def test_a_killed_slurmd_leaves_its_job_running_and_finds_it_again(new_cluster: NewCluster) -> None:
    cluster = new_cluster(nodes=1)
    job = cluster.submit(f"echo $$ > {cluster.folder}/pid; exec sleep 100")
    cluster.wait_for_state(job, "RUNNING")
    written = cluster.folder / "pid"
    pid = int(cluster.wait_for(lambda: written.exists() and written.read_text()))
    cluster.stop_daemon("slurmd-n1")
    os.kill(pid, 0)
    cluster.start_daemon("slurmd-n1")
    cluster.run("scancel", job)
    cluster.wait_for_state(job, "CANCELLED")
    cluster.wait_for(lambda: "idle" in cluster.run("sinfo", "-h", "-p", "main", "-o", "%T"))


def test_a_wrapped_slurm_is_used_like_any_other(new_cluster: NewCluster) -> None:
    cluster = new_cluster(nodes=1, wrapper=("env", "--"))
    assert shutil.which("sbatch", path=cluster.env["PATH"]) == str(cluster.folder / "bin/sbatch")
    job = cluster.submit("pwd", f"--output={cluster.folder}/out")
    cluster.wait_for_state(job, "COMPLETED")
    assert (cluster.folder / "out").read_text().strip() == str(cluster.folder)


async def test_slurmrestd_answers_on_its_socket_and_to_a_token(new_cluster: NewCluster) -> None:
    cluster = new_cluster(nodes=1, rest=True)
    path = "/slurm/v0.0.38/ping"
    connector = aiohttp.UnixConnector(cluster.env["SLURMRESTD_SOCKET"])
    async with aiohttp.ClientSession("http://slurm", connector=connector) as session, session.get(path) as answer:
        assert (await answer.json())["pings"][0]["ping"] == "UP"
    token = cluster.run("scontrol", "token").removeprefix("SLURM_JWT=")
    headers = {"X-SLURM-USER-NAME": getpass.getuser(), "X-SLURM-USER-TOKEN": token}
    async with aiohttp.ClientSession(cluster.env["SLURMRESTD_URL"]) as session:
        async with session.get(path, headers=headers) as answer:
            assert (await answer.json())["pings"][0]["ping"] == "UP"
        async with session.get(path) as answer:
            assert answer.status == 401


def test_accounting_remembers_and_a_higher_qos_preempts(accounting_cluster: Cluster) -> None:
    cluster = accounting_cluster
    low = cluster.submit("sleep 100", "-N4", "-c8", "--exclusive")
    cluster.wait_for_state(low, "RUNNING")
    high = cluster.submit("true", "-N4", "-c8", "--qos=high")
    cluster.wait_for_state(high, "COMPLETED")
    assert cluster.state(low) == "PENDING"
    cluster.clear()
    known = {f"{high}|COMPLETED|rl|high", f"{low}|PREEMPTED|rl|normal"}
    cluster.wait_for(lambda: known <= set(cluster.run(*_SACCT, "--duplicates").splitlines()))


_SACCT = ("sacct", "-n", "-X", "-P", "-o", "jobid,state,account,qos")


def test_one_job_at_a_time_by_qos(accounting_cluster: Cluster) -> None:
    first, second = (accounting_cluster.submit("sleep 100", "--qos=one") for _ in range(2))
    accounting_cluster.wait_for_state(first, "RUNNING")
    reason = ("squeue", "-h", "-j", second, "-o", "%r")
    accounting_cluster.wait_for(lambda: accounting_cluster.run(*reason) == "QOSMaxJobsPerUserLimit")
    accounting_cluster.clear()
