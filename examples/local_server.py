"""A server of one's own on this machine with its pools: for the demo and for the examples of training.

Run as a program, it waits for the death of a process that uses `local_server`, and then ends the server and its pools.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from rollyard.cli.manifests import read_manifests
from rollyard.client import AsyncClient
from rollyard.core.errors import NotFound, RollyardError
from rollyard.kinds.base import KindObject, get_condition
from rollyard.kinds.inference_pool import InferencePool

ROOT = Path(__file__).resolve().parents[1]
DEVCLUSTER = ROOT / "deploy" / "slurm" / "devcluster"
READY_SECONDS, DELETE_SECONDS, STOP_SECONDS = 60.0, 60.0, 30.0
VLLM_READY_SECONDS = 600.0
ENDED = b"ended"
"""Text by which a process tells its guard that it has ended its server itself."""


@contextmanager
def local_server(folder: Path, cluster: Mapping[str, str]) -> Iterator[Path]:
    """Run a server in a folder of its own; yield its kubeconfig. Its jobs run on this cluster, or as processes.

    The guard deletes the folder if this process is killed, and first ends a throwaway cluster in it.
    """
    command = [sys.executable, "-m", "rollyard.cli.main", "serve", "--data", str(folder / "data")]
    command += ["--cluster", "slurm" if cluster else "local"]
    # ~/.rollyard links to the newest server; the user's own link stays unchanged
    env = {**os.environ, **cluster, "HOME": str(folder)}
    env.setdefault("ROLLYARD_CACHE", str(Path.home() / ".cache" / "rollyard"))
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
            cwd=ROOT,
            start_new_session=True,  # ctrl-C ends only the demo, which needs the server to delete its pools
        )
    guard = subprocess.Popen(
        [sys.executable, "-m", "examples.local_server", str(folder), str(server.pid)],
        stdin=subprocess.PIPE,
        env=env,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start:\n{(folder / 'server.log').read_text()}")
        yield Path(json.loads(line)["kubeconfig"])
    finally:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
        guard.communicate(ENDED)


@contextmanager
def throwaway_slurm(folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Run a Slurm cluster in the folder of a server; yield the environment that its users need, and what it is."""
    done = subprocess.run([sys.executable, DEVCLUSTER, "up", cluster_of(folder)], text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"the throwaway cluster did not come up:\n{done.stderr}")
    try:
        yield {"SLURM_CONF": str(cluster_of(folder) / "slurm.conf")}, done.stderr.removeprefix("# ").partition(";")[0]
    finally:
        end_cluster(folder)


def cluster_of(folder: Path) -> Path:
    """Return the folder of the throwaway cluster."""
    return folder / "slurm"


def end_cluster(folder: Path) -> None:
    command = [sys.executable, DEVCLUSTER, "down", cluster_of(folder)]
    subprocess.run(command, stderr=subprocess.PIPE, start_new_session=True)


@contextmanager
def served_pools(console: Console, manifest: Path) -> Iterator[Path]:
    """Run a server with the pools of a manifest; yield its kubeconfig once they are ready, and delete them at the end."""
    pools = read_manifests((str(manifest),), "default")
    with (
        tempfile.TemporaryDirectory(prefix="rollyard-example-") as folder,
        local_server(Path(folder), {}) as kubeconfig,
    ):

        async def begin() -> None:
            async with AsyncClient(kubeconfig=kubeconfig) as client:
                for pool in pools:
                    await client.apply(pool)
                await until_ready(console, client, pools)

        try:
            asyncio.run(begin())
            yield kubeconfig
        finally:
            asyncio.run(end_pools(console, kubeconfig))


async def end_pools(console: Console, kubeconfig: Path) -> None:
    """End the server's batches and rollouts, and delete its pools."""
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        for batch in await client.batches():  # a running batch would draw new tasks
            await client.cancel_batch(batch.id, rollouts="cancel")
        models, _ = await client.list_objects("InferencePool")
        pools, _ = await client.list_objects("RolloutPool")
        for pool in pools:  # otherwise it finishes its rollouts before it is deleted
            await client.cancel_rollouts(pool=pool.metadata.name)
        await delete(console, client, [*models, *pools])


def end_after_death(folder: Path, server: int) -> None:
    """Wait until the process at the other end of stdin ends. If it ended without ENDED, such as by SIGKILL, delete the
    server's pools, end the server and a throwaway cluster in its folder, and delete the folder."""
    if sys.stdin.buffer.read() == ENDED:
        return
    kubeconfig = folder / "data" / "admin.kubeconfig"
    if kubeconfig.exists():
        with suppress(RollyardError, TimeoutError):
            asyncio.run(end_pools(Console(quiet=True), kubeconfig))
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(server)
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not select.select([descriptor], [], [], STOP_SECONDS)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    if cluster_of(folder).exists():
        end_cluster(folder)
    shutil.rmtree(folder, ignore_errors=True)


async def until_ready(console: Console, client: AsyncClient, pools: Sequence[KindObject]) -> None:
    said: dict[str, str] = {}
    loads = any(isinstance(pool, InferencePool) and pool.spec.engine.vllm is not None for pool in pools)
    async with asyncio.timeout(VLLM_READY_SECONDS if loads else READY_SECONDS):
        while True:
            found = [get_condition(getattr(await client.get(p.key), "status").conditions, "Ready") for p in pools]  # noqa: B009
            for pool, ready in zip(pools, found, strict=True):
                now = f"{ready.reason}: {ready.message}" if ready else "Unknown"
                if said.get(pool.metadata.name) != now:
                    said[pool.metadata.name] = now
                    console.print(f"  {pool.SINGULAR}/{pool.metadata.name} {now}", highlight=False)
            if all(ready is not None and ready.status == "True" for ready in found):
                return
            await asyncio.sleep(0.2)


async def delete(console: Console, client: AsyncClient, pools: Sequence[KindObject]) -> None:
    """Delete the pools; they end their jobs first."""
    for pool in reversed(pools):
        await client.delete(pool.key)
    async with asyncio.timeout(DELETE_SECONDS):
        for pool in pools:
            while True:
                try:
                    await client.get(pool.key)
                except NotFound:
                    console.print(f"{pool.SINGULAR}/{pool.metadata.name} deleted")
                    break
                await asyncio.sleep(0.1)


if __name__ == "__main__":
    end_after_death(Path(sys.argv[1]), int(sys.argv[2]))
