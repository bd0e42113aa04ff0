"""The drivers of the common suite, with their clusters. A further driver is a further entry of CASES."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rollyard.core.errors import SlurmUnreachable
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import BatchScript, Driver, Job
from rollyard.slurm.batch_script import batch_script
from rollyard.slurm.cli_driver import CliDriver
from rollyard.slurm.local_driver import LocalDriver
from rollyard.slurm.pyslurm_driver import PyslurmDriver
from rollyard.slurm.rest.address import SlurmCredentials, SlurmrestdAddress
from rollyard.slurm.rest.rest_driver import RestDriver
from tests.support.cluster import Cluster, start_cluster, stop_cluster
from tests.support.until import COSTLY_PAUSE, until

T = TypeVar("T")
WAIT_SECONDS = 60.0
COMMENT = "rollyard:server:uid"


@dataclass(frozen=True)
class Case:
    """A driver, and the cluster that it needs."""

    id: str
    open: Callable[[Cluster, float], Driver]
    """Maps (cluster, seconds without an answer after which a call fails) to the driver."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `devcluster up`, and `sid` for Slurm 26.05; cases with equal options share a cluster."""
    accounting: bool = True
    """Whether such a cluster can also have slurmdbd."""
    accounting_codes: bool = True
    """Whether accounting reports exit codes: 22.05's slurmrestd reports 0 for all."""
    marks: Sequence[pytest.MarkDecorator] = ()


def open_cli(cluster: Cluster, limit_seconds: float) -> Driver:
    return CliDriver({**os.environ, **cluster.env}, limit_seconds=limit_seconds)


def open_pyslurm(cluster: Cluster, limit_seconds: float) -> PyslurmDriver:
    """Open the driver with the tree's Python, which has pyslurm."""
    python = (*cluster.wrapper, "/opt/pyslurm/bin/python")
    return PyslurmDriver({**os.environ, **cluster.env}, python=python, limit_seconds=limit_seconds)


def open_rest(cluster: Cluster, limit_seconds: float) -> RestDriver:
    """Open the driver on its socket; since 26.05 slurmrestd runs as nobody and requires a token there too."""
    address = SlurmrestdAddress.parse(f"unix:{cluster.env['SLURMRESTD_SOCKET']}")
    identity = SlurmCredentials(cluster.token()) if cluster.wrapper else SlurmCredentials()
    return RestDriver(address, identity, {**os.environ, **cluster.env}, limit_seconds=limit_seconds)


HERE = {"rest": True}
SID = {"rest": True, "sid": True}
CASES = [
    Case("cli", open_cli, HERE),
    Case("rest", open_rest, HERE, accounting_codes=False),
    Case("cli-26.05", open_cli, SID, marks=(pytest.mark.heavy,)),
    Case("pyslurm-26.05", open_pyslurm, SID, marks=(pytest.mark.heavy,)),
    Case("rest-26.05", open_rest, SID, marks=(pytest.mark.heavy,)),
]
"""Cases of drivers that use a Slurm, so without the local driver."""

ON_SLURM = [pytest.param(case, id=case.id, marks=case.marks) for case in CASES]
EVERYWHERE = [pytest.param(None, id="local"), *ON_SLURM]


class Ground:
    """A driver, and the means to observe its effects. Submitted jobs are cancelled at the end."""

    def __init__(self, driver: Driver, folder: Path, cluster: Cluster | None, case: Case | None = None) -> None:
        self.driver, self.folder, self.case = driver, folder, case
        self._cluster = cluster
        self._ids: list[str] = []

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def script(self, command: str, *, name: str = "rollyard-t-0", comment: str = COMMENT, **more: Any) -> BatchScript:
        """Make a script. `tasks` and `after_job` as for batch_script; other arguments are fields of the template."""
        ours = {key: more.pop(key) for key in ("tasks", "after_job") if key in more}
        return batch_script(
            AllocationTemplate(**{"time_limit": "00:10:00", **more}),
            name=name,
            comment=comment,
            log_path=str(self.folder / "job.log"),
            directory=str(self.folder),
            command=["bash", "-c", command],
            **ours,
        )

    async def submit(self, command: str, **more: Any) -> str:
        return (await self.submit_all(command, **more))[0]

    async def submit_all(self, command: str, **more: Any) -> list[str]:
        ids = await self.driver.submit(self.script(command, **more))
        self._ids += ids
        return ids

    async def answer(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the first answer: on a busy machine one may take longer than the driver's limit."""

        async def answered() -> list[T]:
            with contextlib.suppress(SlurmUnreachable):
                return [await call()]
            return []

        return (await until(answered, WAIT_SECONDS))[0]  # type: ignore[no-any-return]

    async def until(self, id: str, done: Callable[[Job], object]) -> Job:
        """Return the job once the condition holds."""

        async def seen() -> Job | None:
            return (await self.answer(self.driver.list_jobs)).jobs.get(id)

        async def so() -> Job | None:
            job = await seen()
            return job if job is not None and done(job) else None

        return await until(so, WAIT_SECONDS, seen=seen, least=COSTLY_PAUSE)

    async def state(self, id: str, state: JobState) -> Job:
        return await self.until(id, lambda job: job.state is state)

    async def ended(self, id: str) -> Job:
        return await self.until(id, lambda job: job.state.ended)

    async def appears(self, name: str) -> str:
        """Return the text of a file that a job writes at once."""
        path = self.folder / name
        return str(await until(lambda: path.exists() and path.read_text(), WAIT_SECONDS))

    async def close(self) -> None:
        await self.answer(lambda: self.driver.cancel(self._ids))

        async def over() -> bool:
            jobs = (await self.answer(self.driver.list_jobs)).jobs
            return all(jobs[id].state.ended for id in self._ids if id in jobs)

        await until(over, WAIT_SECONDS, least=COSTLY_PAUSE)
        await self.driver.close()


Clusters = Callable[..., Cluster]


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """clusters(**options): a cluster shared by all tests with equal options; break nothing, and cancel your jobs."""
    made: dict[str, Cluster] = {}

    def shared(**options: Any) -> Cluster:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = start_cluster(**options)
        return made[key]

    yield shared
    for one in made.values():
        stop_cluster(one)


@contextlib.asynccontextmanager
async def ground_of(
    case: Case | None, folder: Path, cluster: Cluster | None, *, limit_seconds: float = 30.0
) -> AsyncIterator[Ground]:
    if case is None or cluster is None:
        made = Ground(LocalDriver(folder / "slurm", kill_wait=WAIT_SECONDS), folder, None)
    else:
        made = Ground(case.open(cluster, limit_seconds), folder, cluster, case)
    try:
        yield made
    finally:
        await made.close()
