"""An engine's child with a session of its own, a port and a file in /dev/shm, on a real Slurm: no end of the engine, the
model server or the job leaves it behind, and the next engine starts."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from tests.e2e.test_inference_server import apply, ready
from tests.support.cluster import start_cluster, stop_cluster
from tests.support.leaky_engine import Leak, leaking, new_leak
from tests.support.yard import Yard, alive, end, kill

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(60)]


@dataclass
class Leaking:
    yard: Yard
    client: AsyncClient
    leak: Leak
    scratch: Path

    def pids(self, *words: str) -> list[int]:
        return [pid for word in words for pid in self.yard.processes(word)]

    async def replaced(self, old: list[int]) -> None:
        """Wait until an engine serves whose child holds everything; the old children must be gone by then."""

        async def new_child() -> bool:
            return bool(set(self.leak.alive) - set(old))

        await self.yard.until(new_child)
        assert not any(alive(pid) for pid in old)
        await ready(self.yard, self.client)

    async def is_free(self) -> bool:
        return not self.leak.held()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Leaking]:
    folder = tmp_path_factory.mktemp("leaking")
    (folder / "s").mkdir()
    leak = new_leak(folder / "leak")
    cluster = start_cluster(nodes=1)
    cluster.configure("KillWait=30")  # Slurm's default, within which a model server ends its engine
    yard = Yard(folder, cluster)
    try:
        yard.start()
        async with yard.client() as client:
            env = leaking(leak, folder / "python")
            allocation = {"env": env, "scratch": str(folder / "s"), "cpusPerTask": 1, "memory": "1GiB"}
            await apply(client, allocation={"partition": "main", **allocation})
            await ready(yard, client)
            yield Leaking(yard, client, leak, folder / "s")
    finally:
        await end(yard)
        stop_cluster(cluster)
        for pid in leak.alive:
            kill(pid)
        leak.file.unlink(missing_ok=True)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "victims",
    [["rollyard.engine.embedded"], ["inference-server"], ["engine_owner"], ["engine_owner", "inference-server"]],
)
async def test_a_killed_part_of_a_model_server_leaves_nothing_to_the_next_engine(
    site: Leaking, victims: list[str]
) -> None:
    old = site.leak.alive
    for pid in site.pids(*victims):
        kill(pid)
    await site.replaced(old)


async def test_a_model_server_whose_every_process_is_killed_at_once_leaves_nothing_to_the_next(site: Leaking) -> None:
    old = site.leak.alive
    for pid in [*site.pids("inference-server", "engine_owner", "rollyard.engine.embedded"), *old]:
        kill(pid)
    await site.replaced(old)


async def test_a_killed_server_leaves_the_engine_as_it_is(site: Leaking) -> None:
    old = site.leak.alive
    site.yard.kill()
    site.yard.start()
    await ready(site.yard, site.client)
    assert site.leak.alive == old


async def test_a_job_that_is_cancelled_by_hand_and_a_deleted_pool_leave_nothing(site: Leaking) -> None:
    old = site.leak.alive
    assert site.yard.cluster is not None
    site.yard.cluster.run("scancel", "--signal=KILL", *(job.id for job in await site.yard.jobs()))
    await site.replaced(old)
    await site.yard.delete_pools(site.client)
    await site.yard.until(site.is_free)

    async def no_folder() -> bool:
        return list(site.scratch.iterdir()) == []

    await site.yard.until(no_folder)
