"""The yards that the modules of this folder share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from tests.support.memory_cgroup import job_cgroups
from tests.support.ordinary_user import home_of, ordinary_user, small_cache
from tests.support.yard import Yard


@dataclass(frozen=True)
class Served:
    """A yard with the demo's pools, of one replica each."""

    yard: Yard
    client: AsyncClient
    cgroups: dict[str, Path]
    """Cgroups of all its processes, by controller, without limits; empty if this machine gives none."""
    cache: Path | None
    """The node's folder for sandboxes, on a small file system of its own; None if this machine does not allow it."""

    def enter_cgroups(self) -> None:
        """Move the server into the cgroups. All processes that it starts later are in them too."""
        assert self.yard.server is not None
        for folder in self.cgroups.values():
            (folder / "cgroup.procs").write_text(str(self.yard.server.pid))


@dataclass(frozen=True)
class OnRuntime(Served):
    """A yard whose sandboxes have one runtime."""

    runtime: str
    user: str


class Yards:
    """One yard for each user, made when a test first needs it."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._made: dict[str, Served] = {}

    async def of(self, user: str) -> Served:
        """Return the yard of the user who runs the tests (`own`), or of an ordinary one (`ordinary`)."""
        if user not in self._made:
            ordinary = ordinary_user() if user == "ordinary" else None
            home = self._stack.enter_context(home_of(ordinary))
            cache = self._stack.enter_context(small_cache(home / "cache", ordinary))
            yard = Yard(home, ordinary=ordinary)
            if cache is not None:
                yard.env["ROLLYARD_CACHE"] = str(cache)
            self._made[user] = await self._stack.enter_async_context(_served(yard, cache))
        return self._made[user]


@contextlib.asynccontextmanager
async def _served(yard: Yard, cache: Path | None) -> AsyncIterator[Served]:
    async with job_cgroups() as cgroups:
        try:
            yard.start()
            async with yard.client() as client:
                served = Served(yard, client, cgroups, cache)
                served.enter_cgroups()
                await _apply(yard, client, "auto")
                await yard.ready(client)
                yield served
        finally:
            await yard.clean_up()


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def yards() -> AsyncIterator[Yards]:
    async with contextlib.AsyncExitStack() as stack:
        yield Yards(stack)


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def served(yards: Yards) -> tuple[Yard, AsyncClient]:
    """A yard with sandboxes on Apptainer where it is installed."""
    found = await yards.of("own")
    return found.yard, found.client


async def _apply(yard: Yard, client: AsyncClient, runtime: str) -> None:
    await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1, "sandbox": {"runtime": runtime}})


ON = [
    ("own", "auto"),
    ("ordinary", "auto"),
    pytest.param(("own", "bubblewrap"), marks=pytest.mark.long),
    pytest.param(("ordinary", "bubblewrap"), marks=pytest.mark.long),
]


@pytest_asyncio.fixture(loop_scope="package", params=ON, ids="-".join)
async def on_runtime(yards: Yards, request: pytest.FixtureRequest) -> AsyncIterator[OnRuntime]:
    """The yard of one user, with sandboxes of one runtime."""
    user, runtime = request.param
    found = await yards.of(user)
    if runtime != "auto":
        await _replaced(found.yard, found.client, runtime)
    yield OnRuntime(found.yard, found.client, found.cgroups, found.cache, runtime, user)
    if runtime != "auto":
        await _replaced(found.yard, found.client, "auto")


async def _replaced(yard: Yard, client: AsyncClient, runtime: str) -> None:
    """Wait until all allocations of the pool have the runtime."""
    before = set(yard.processes("node-agent"))
    await _apply(yard, client, runtime)

    async def replaced() -> bool:
        return not before & set(yard.processes("node-agent"))

    await yard.until(replaced, 300.0)
    await yard.ready(client)
