"""Many live sessions: node agents hold leases for minutes and renew them, each over its own connection.

The server is real, in a process of its own. The node agents are simulated here: they hold what they get and upload all
results at the end. Each lease is a live session on a model server.

    python -m bench.sessions [--sessions 2048] [--nodes 16] [--seconds 300]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from bench.control_plane import NullNode, cpu_seconds, null_pool, started, submit
from rollyard.client import AsyncClient
from rollyard.client.server_link import ServerLink
from rollyard.core.lease_time import LEASE_SECONDS
from rollyard.kinds.rollout import Stage
from rollyard.wire.node import CapacityRequest, Heartbeat, Lease, LeaseRef, Renewed, ToNode


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sessions", type=int, default=2048)
    options.add_argument("--nodes", type=int, default=16)
    options.add_argument("--seconds", type=float, default=300.0)
    given = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="rollyard-bench-") as folder,
        started(["-m", "rollyard.cli.main", "serve", "--data", f"{folder}/data"], folder) as (pid, line),
    ):
        kubeconfig = Path(json.loads(line)["kubeconfig"])
        asyncio.run(_hold(kubeconfig, pid, given.sessions, given.nodes, given.seconds))


async def _hold(kubeconfig: Path, pid: int, sessions: int, nodes: int, seconds: float) -> None:
    async with (
        AsyncClient(kubeconfig=kubeconfig) as client,
        null_pool(client, kubeconfig.parent, nodes) as jobs,
        _holding(jobs, sessions // nodes) as holding,
    ):
        await submit(client, sessions, "held")
        await _until(client, "INIT", sessions)
        before, cpu, fewest = time.perf_counter(), cpu_seconds(pid), sessions
        while time.perf_counter() - before < seconds:
            await asyncio.sleep(1)
            fewest = min(fewest, (await client.counts(pool="null"))["INIT"])
        share = (cpu_seconds(pid) - cpu) / (time.perf_counter() - before)
        megabytes = _resident_bytes(pid) / 1e6
        lost = sum(node.lost for node in holding)
        for node in holding:
            node.release.set()
        await _until(client, "Completed", sessions)
    print(f"{sessions} sessions of {nodes} node agents for {seconds:.0f} s: fewest live {fewest}, leases lost {lost}")
    print(f"server: {share * 100:.1f} % of a core, {megabytes:.0f} MB; completed afterwards: {sessions}")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def _holding(jobs: list[tuple[Path, str]], room: int) -> AsyncIterator[list[HoldingNode]]:
    """Run a node agent for each job."""
    nodes: list[HoldingNode] = []
    async with asyncio.TaskGroup() as group:
        tasks = []
        for folder, job in jobs:
            os.environ["SLURM_JOB_ID"] = job
            link = ServerLink.open(folder)
            node = HoldingNode(link, link.session(), room)
            nodes.append(node)
            tasks += [group.create_task(node.run()), group.create_task(node.beat())]
        yield nodes
        for task in tasks:
            task.cancel()
    for node in nodes:
        await asyncio.gather(*node.tasks, return_exceptions=True)
        await node.http.close()


async def _until(client: AsyncClient, word: str, count: int) -> None:
    async with asyncio.timeout(300):
        while (await client.counts(pool="null"))[word] < count:
            await asyncio.sleep(0.1)


class HoldingNode(NullNode):
    """A node agent that holds its leases until `release` is set."""

    def __init__(self, link: ServerLink, http: aiohttp.ClientSession, room: int) -> None:
        super().__init__(link, http)
        self.http = http
        self.release = asyncio.Event()
        self.lost = 0
        self._room = room

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            await self.line.send(Heartbeat(held=list(self._held.values())))

    async def _hear(self, message: ToNode) -> None:
        if isinstance(message, Renewed):
            self.lost += len(message.lost)
        await super()._hear(message)

    async def _want(self) -> None:
        await self.line.send(CapacityRequest(init=self._room - len(self._held), kinds=["math"]))

    async def _answer(self, lease: Lease) -> None:
        ref = LeaseRef(namespace=lease.namespace, id=lease.id, fence=lease.fence, stage=Stage.INIT)
        self._held[lease.id] = ref
        await self.release.wait()
        await self.uploads.result(ref, self.outcome)
        del self._held[lease.id]


if __name__ == "__main__":
    main()
