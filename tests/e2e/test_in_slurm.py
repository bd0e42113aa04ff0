"""The server as a Slurm job on real daemons: it moves under load, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollyard.client import AsyncClient
from rollyard.server_process.job.job_folder import ServerJobFolder
from rollyard.store.folder_lock import FolderLock, JobRun
from tests.support import forked_commands
from tests.support.cluster import Cluster, start_cluster, stop_cluster
from tests.support.standstill import freeze
from tests.support.yard import Yard, alive, end, kill, requests

pytestmark = pytest.mark.slow(120)

ROLLOUTS = 4


class JobYard(Yard):
    """A yard whose server is a job."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder, cluster)
        self.slurm = cluster

    def serve(self, *options: str) -> dict[str, Any]:
        """The line that `rollyard serve --in-slurm` prints."""
        done = self.run(*options)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.slurm.env, "HOME": str(self.folder)}
        env["ROLLYARD_CACHE"] = os.environ.get("ROLLYARD_CACHE", str(Path.home() / ".cache" / "rollyard"))
        words = [
            "serve",
            "--in-slurm",
            "--data",
            str(self.data),
            "--lease-seconds",
            "8",
            "--mem",
            "100M",
            "--wait",
            "60",
        ]
        return forked_commands.run(*words, *options, env=env, seconds=90)

    @property
    def place(self) -> ServerJobFolder:
        return ServerJobFolder(self.data)

    def endpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "endpoint.json").read_text())
        return found

    def server_pid(self) -> int:
        """0 while nobody holds the folder."""
        words = (self.data / "lock").read_text().split()
        return int(words[1]) if words else 0

    def server_jobs(self, *states: str) -> list[str]:
        rows = self.slurm.run("squeue", "-h", "-t", ",".join(states), "-n", self.place.name, "-o", "%i").split()
        return sorted(rows, key=int)

    async def until_served_by(self, *jobs: str, seconds: float = 120.0) -> dict[str, Any]:
        async def moved() -> dict[str, Any] | None:
            found = self.endpoint()
            return found if found["job"] in jobs else None

        found: dict[str, Any] = await self.until(moved, seconds)
        return found

    async def until_followed(self) -> tuple[str, str]:
        """The ids of the jobs that wait behind the one that runs, the next one first."""

        async def queued() -> list[str] | None:
            waiting = await asyncio.to_thread(self.server_jobs, "PENDING")
            return waiting if len(waiting) >= 2 else None

        first, second = await self.until(queued)
        return first, second

    async def clean_up(self) -> None:
        if await asyncio.to_thread(self.server_jobs, "PENDING", "RUNNING"):
            await asyncio.to_thread(self.run, "--stop")
        await super().clean_up()


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    made = start_cluster(conf=("SlurmdTimeout=5", "MessageTimeout=5", "KillWait=5", "ReturnToService=1"))
    yield made
    stop_cluster(made)


@pytest.fixture
async def yard(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[JobYard]:
    """A new data folder; the cluster has no job, and its four nodes are idle."""
    for name in {*slurm.daemons.by_name} - {*slurm.pids}:  # a test that failed left it so
        await asyncio.to_thread(slurm.start_daemon, name)
    with contextlib.suppress(AssertionError):  # the node is not drained
        await asyncio.to_thread(slurm.run, "scontrol", "update", "NodeName=n1", "State=resume")
    await asyncio.to_thread(slurm.clear)
    await asyncio.to_thread(slurm.wait_for, lambda: {*slurm.run("sinfo", "-h", "-o", "%T").split()} == {"idle"})
    made = JobYard(tmp_path_factory.mktemp("yard"), slurm)
    made.place.folder.mkdir(parents=True, exist_ok=True)
    (made.folder / "server.log").symlink_to(made.place.log)
    yield made
    await end(made)


async def begin(yard: JobYard, client: AsyncClient) -> list[str]:
    """Both pools ready, away from the server's node; rollouts under way."""
    away = {"replicas": 1, "allocation": {"exclude": ["n1"]}}
    await yard.apply(client, policy=away, demo={**away, "stages": {"eval": {"workers": {"max": 1}}}})
    await yard.ready(client)
    return await client.submit(requests(0, ROLLOUTS))


async def all_is_well(yard: JobYard, client: AsyncClient, ids: list[str], allocations: set[str | None]) -> None:
    """Every rollout ended once, on the jobs that were there before."""
    trajectories = await yard.gather(client, ids)
    assert all(t.status.scored for t in trajectories), [t.error for t in trajectories]
    counts = await client.counts(pool="demo")
    assert counts["Completed"] + counts["Truncated"] == len(ids)
    assert {a.status.job_id for a in await yard.allocations(client)} == allocations


async def jobs(yard: JobYard, client: AsyncClient) -> set[str | None]:
    return {a.status.job_id for a in await yard.allocations(client)}


async def test_one_job_serves_comes_back_is_followed_and_is_found_again_and_stopped(yard: JobYard) -> None:
    first = await asyncio.to_thread(yard.serve)
    again = await asyncio.to_thread(yard.serve)
    assert again == first
    assert first["event"] == "serving"
    assert first["kubeconfig"] == str(yard.data / "admin.kubeconfig")

    # A server whose process dies comes back within its job.
    before = yard.endpoint()
    kill(yard.server_pid())

    async def back() -> bool:
        return bool(yard.endpoint()["epoch"] > before["epoch"])

    await yard.until(back)
    assert yard.endpoint()["job"] == first["job"]

    # A start after a stop that was interrupted: the job is followed again.
    standbys = await yard.until_followed()
    yard.place.remove_script()
    yard.slurm.run("scancel", *standbys)
    assert (await asyncio.to_thread(yard.serve))["job"] == first["job"]
    standby, _ = await yard.until_followed()
    assert standby not in standbys

    # A walltime that ends is met by a clean stop and a standby job. Slurm's warning is sent by hand: with limits of whole
    # minutes it would be waited for a minute and more.
    yard.slurm.run("scancel", "--batch", "--signal=USR1", first["job"])
    await yard.until_served_by(standby)
    await asyncio.to_thread(yard.slurm.wait_for_state, first["job"], "COMPLETED")
    standbys = await yard.until_followed()

    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 0}, demo={"replicas": 1})
        await yard.until(lambda: running(yard))
        stopped = await asyncio.to_thread(yard.serve, "--stop")
        assert stopped == {"event": "stopped", "jobs": stopped["jobs"]}
        assert set(stopped["jobs"]) == {standby, *standbys}
        assert yard.server_jobs("PENDING", "RUNNING") == []
        (kept,) = await yard.jobs()
        assert kept.state == "RUNNING", "the allocation outlives the server"
        await asyncio.to_thread(yard.serve)
        (allocation,) = await yard.allocations(client)
        assert allocation.status.job_id == kept.id


async def running(yard: JobYard) -> bool:
    return any(job.state == "RUNNING" and job.name != yard.place.name for job in await yard.jobs())


async def test_a_server_that_moves_to_another_node_under_load_loses_nothing(yard: JobYard) -> None:
    first = await asyncio.to_thread(yard.serve)
    assert first["node"] == "n1"
    async with yard.client() as client:
        ids = await begin(yard, client)
        allocations = await jobs(yard, client)
        standby, _ = await yard.until_followed()
        yard.slurm.run("scontrol", "update", "NodeName=n1", "State=drain", "Reason=test")
        yard.slurm.run("scancel", first["job"])
        await yard.until_served_by(standby)
        await all_is_well(yard, client, ids, allocations)
        node = yard.slurm.run("squeue", "-h", "-j", standby, "-o", "%N")
        assert node != "n1"
        assert not {first["job"], standby} & {*await yard.until_followed()}
        yard.slurm.run("scontrol", "update", "NodeName=n1", "State=resume")


async def test_a_standby_job_that_a_broken_node_ends_at_once_has_one_behind_it(yard: JobYard) -> None:
    runs = yard.folder / "runs"
    broken = f"echo >> {runs}; [ $(wc -l < {runs}) -ne 2 ] || exit 1"
    first = await asyncio.to_thread(yard.serve, f"--setup={broken}")
    next, second = await yard.until_followed()
    yard.slurm.run("scancel", first["job"])
    await yard.until_served_by(second)
    await asyncio.to_thread(yard.slurm.wait_for_state, next, "FAILED")
    assert second not in await yard.until_followed()


async def test_a_server_that_lives_on_on_a_lost_node_writes_no_more(yard: JobYard) -> None:
    """It is frozen when its node is lost, so that it keeps the lock, and thaws when the next one has taken over."""
    await asyncio.to_thread(yard.serve)
    async with yard.client() as client:
        ids = await begin(yard, client)
        allocations = await jobs(yard, client)
        standby, _ = await yard.until_followed()
        old = yard.server_pid()
        await freeze_idle(old)
        try:
            await asyncio.to_thread(yard.slurm.stop_daemon, "slurmd-n1")
            await yard.until_served_by(standby)
            assert yard.server_pid() == old, "the lock is still its own"
            await all_is_well(yard, client, ids, allocations)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(old, signal.SIGCONT)

        async def gone() -> bool:
            return not alive(old) and yard.server_pid() not in (0, old)

        await yard.until(gone)
        assert "error: a newer server uses this data folder" in yard.place.log.read_text()
        assert yard.endpoint()["job"] == standby
        await yard.gather(client, await client.submit(requests(0, 1, prefix="after")))
    await asyncio.to_thread(yard.slurm.start_daemon, "slurmd-n1")


async def test_a_folder_that_a_given_up_node_still_holds_is_served_by_a_new_job(yard: JobYard) -> None:
    first = await asyncio.to_thread(yard.serve)
    await asyncio.to_thread(yard.serve, "--stop")
    lock = FolderLock(yard.data, JobRun(yard.place.name, int(first["job"])))
    assert lock.acquire_within(10)
    try:
        again = await asyncio.to_thread(yard.serve)
        assert int(again["job"]) > int(first["job"])
    finally:
        lock.release()


async def freeze_idle(server: int) -> None:
    """Not amid a commit, whose locks would keep everybody out: those of a lost node, its file server takes away."""
    while True:
        freeze(server)
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        if not any(words[1] == "POSIX" and str(server) in words for words in locks):
            return
        os.kill(server, signal.SIGCONT)
        await asyncio.sleep(0.01)


async def test_a_folder_that_is_served_from_a_shell_gets_no_job(yard: JobYard) -> None:
    yard.start()
    done = await asyncio.to_thread(yard.run)
    assert done.returncode == 1
    assert "is in use by pid" in done.stderr
    assert yard.slurm.run("squeue", "-h") == ""


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--partition", "nowhere"], "invalid partition"),
        (["--sbatch", "dependency=afterok:1"], "Rollyard sets dependency"),
        (["--sbatch", "--licenses=x"], "is not an option of sbatch"),
        (["--cluster", "local"], "needs a Slurm cluster"),
    ],
)
async def test_what_cannot_be_is_refused_in_words(yard: JobYard, options: list[str], word: str) -> None:
    done = await asyncio.to_thread(yard.run, *options)
    assert done.returncode == 1
    assert word in done.stderr
