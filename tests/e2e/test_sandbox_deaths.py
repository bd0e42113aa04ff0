"""Nothing of live sandboxes stays when their node agent, their allocation or their node's Slurm daemons are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.find_runtime import find_runtime
from tests.support.host_processes import HostProcess, descendants, host_processes
from tests.support.slurm_field import QUICK, Field, field_of
from tests.support.yard import kill, requests

pytestmark = pytest.mark.slow(60)
BUSY_SECONDS = 300.0
FOREVER = {"type": "command", "command": "setsid nohup sleep 100000 > /tmp/x & exec sleep 100000"}
RUNTIMES = ["bubblewrap", pytest.param("apptainer", marks=pytest.mark.long)]
"""tests/sandbox/test_lifetime.py kills the owner of sandboxes on each runtime."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def field(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_of(tmp_path_factory, conf=QUICK) as found:
        yield found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_nothing_stays_of_many_sandboxes(runtime: RuntimeName, field: Field, long_run: bool) -> None:
    try:
        find_runtime(runtime)
    except SandboxStartFailed as error:
        pytest.skip(f"{runtime} does not start here: {error}")
    count = 20 if long_run else 4
    many: dict[str, Any] = {"min": count, "max": count}
    stages = {"init": {"workers": {"min": 4, "max": 4}}, "run": {"workers": many, "timeoutSeconds": 3000}}
    sandbox = {"runtime": runtime, "memory": "128M", "disk": "16M", "cpus": 0.03}
    await field.become(
        policy={"replicas": 1}, demo={"replicas": 1, "sandbox": sandbox, "stages": stages, "maxAttempts": 9}
    )
    await field.yard.ready(field.client, BUSY_SECONDS)
    await field.client.submit(requests(0, count, prefix=runtime, agent=FOREVER))

    for kill_all in (_kill_node_agent, _kill_allocation, _kill_slurm_daemons):
        allocation, agent = await _node_agent(field)
        family = await _live_sandboxes(field, agent, count)
        killed = time.monotonic()
        await kill_all(field, allocation, agent)

        async def gone(family: set[HostProcess] = family) -> bool:
            return not family & set(host_processes())

        await field.yard.until(gone, BUSY_SECONDS)
        print(f"{runtime}, {kill_all.__name__}: nothing is left after {time.monotonic() - killed:.1f} s")
        assert _mounts_below(field.yard.folder, node_cache()) == []
        assert _sockets_below(field.yard.folder) == []
    else:  # a model server may have been on the node too: its process ends once Slurm or the server can tell it
        await field.regain(allocation.status.node)
    await field.client.cancel_rollouts(pool="demo")
    await field.settled(2)


async def _node_agent(field: Field) -> tuple[Allocation, int]:
    """Return the running allocation and its node agent. The server may not know yet that the last one was killed."""

    async def look() -> tuple[Allocation, int] | None:
        allocation = await field.running()
        agents = field.yard.processes("node-agent", allocation.metadata.name)
        return (allocation, agents[0]) if agents else None

    found: tuple[Allocation, int] = await field.yard.until(look, BUSY_SECONDS)
    return found


async def _live_sandboxes(field: Field, agent: int, count: int) -> set[HostProcess]:
    """Return the node agent and all processes below it, once every sandbox runs its command and an orphan."""

    async def look() -> set[HostProcess] | None:
        family = descendants(agent)
        sleeps = sum(_command(one.pid).startswith("sleep") for one in family)
        return {*family, *(one for one in host_processes() if one.pid == agent)} if sleeps >= 2 * count else None

    found: set[HostProcess] = await field.yard.until(look, BUSY_SECONDS)
    return found


async def _kill_node_agent(field: Field, allocation: Allocation, agent: int) -> None:
    os.kill(agent, signal.SIGKILL)


async def _kill_allocation(field: Field, allocation: Allocation, agent: int) -> None:
    await field.slurm("scancel", "--signal=KILL", "--full", str(allocation.status.job_id))


async def _kill_slurm_daemons(field: Field, allocation: Allocation, agent: int) -> None:
    """The node agent lives on, until the server hears from Slurm that the node is lost."""
    for one in host_processes():
        if _command(one.pid).startswith(f"slurmstepd: [{allocation.status.job_id}."):
            kill(one.pid)
    await field.lose(allocation.status.node)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _mounts_below(*folders: Path) -> list[str]:
    """Mounts of the host in these folders."""
    mounts = [Path(line.split(" ", 5)[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [str(mount) for mount in mounts if any(mount.is_relative_to(folder) for folder in folders)]


def _sockets_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_socket()]
