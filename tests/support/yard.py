"""A real Rollyard on this machine: server, node agents, engines, sandboxes, each a process that a test may kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from examples.tiny_policy.families import sample_code, sample_math
from rollyard.client import AsyncClient
from rollyard.core.errors import NotFound
from rollyard.host.sandbox_account import Credentials
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey, get_condition
from rollyard.kinds.registry import parse_object
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.task import Task
from rollyard.slurm.base import Driver, Job
from rollyard.slurm.cli_driver import CliDriver
from rollyard.slurm.local_driver import LocalDriver
from rollyard.slurm.process_identity import start_time
from rollyard.trajectory import Trajectory
from tests.support import forked_commands
from tests.support.cluster import Cluster
from tests.support.ordinary_user import OrdinaryUser
from tests.support.until import COSTLY_PAUSE, until

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "tiny_policy" / "model"
LEASE_SECONDS = 4.0


class Yard:
    """One data folder, and the server that runs on it at the moment."""

    def __init__(self, folder: Path, cluster: Cluster | None = None, *, ordinary: OrdinaryUser | None = None) -> None:
        """`ordinary`: the user who runs everything, in place of the one who runs the tests."""
        self.folder = folder
        self.ordinary = ordinary
        self.data = folder / "data"
        self.cluster = cluster
        self.driven_by = "slurm" if cluster else "local"
        """Value of `serve --cluster`."""
        self.lease_seconds = LEASE_SECONDS
        self.server: subprocess.Popen[str] | forked_commands.ForkedProcess | None = None
        self.env: dict[str, str] = {}
        """Further environment variables of the server."""

    @property
    def driver(self) -> Driver:
        """A separate driver for the jobs."""
        return CliDriver(self.cluster.env) if self.cluster else LocalDriver(self.data / "local-slurm", kill_wait=1.0)

    # the server

    def start(self, *, crash_at: str | None = None) -> None:
        """Start the server and wait until it serves, or, with a failpoint, until it has started."""
        env = {**os.environ, **(self.cluster.env if self.cluster else {}), "HOME": str(self.folder)}
        env["ROLLYARD_CACHE"] = os.environ.get("ROLLYARD_CACHE", str(Path.home() / ".cache" / "rollyard"))
        python, user = sys.executable, Credentials()
        if self.ordinary is not None:
            python, user = self.ordinary.python, self.ordinary.credentials
            env |= self.ordinary.environment
        env |= self.env
        if crash_at is not None:
            env["ROLLYARD_CRASH_AT"] = crash_at
        words = ["serve", "--data", str(self.data), "--cluster", self.driven_by]
        words += ["--lease-seconds", str(self.lease_seconds)]
        with (self.folder / "server.log").open("a") as log:
            if self.ordinary is None and env.get("PYTHONPATH") == os.environ.get("PYTHONPATH"):
                self.server = forked_commands.ForkedProcess(*words, env=env, stderr=log.fileno())
            else:
                command = [python, "-m", "rollyard.cli.main", *words]
                self.server = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, env=env, cwd=ROOT, **user
                )
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        assert line, (self.folder / "server.log").read_text()[-3000:]

    def start_elsewhere(self) -> None:
        """Start the server while its former port is taken."""
        port = urlsplit(endpoint(self.data)).port
        with socket.create_server(("127.0.0.1", port or 0)):
            self.start()

    def kill(self) -> None:
        """Kill the server without warning, as a crash of the machine would."""
        assert self.server is not None
        self.server.kill()
        self.stop()

    def stop(self) -> None:
        if self.server is None:
            return
        if self.server.poll() is None:
            self.server.terminate()
        self.server.wait(60)
        assert self.server.stdout is not None
        self.server.stdout.close()

    def client(self) -> AsyncClient:
        """A client that waits longer for a server that restarts than a busy machine takes."""
        return AsyncClient(kubeconfig=self.data / "admin.kubeconfig", retry_seconds=300)

    # observe

    @property
    def user_env(self) -> dict[str, str]:
        """Environment of the user of this yard."""
        return {name: value for name, value in os.environ.items() if name != "ROLLYARD_KUBECONFIG"} | {
            "HOME": str(self.folder)
        }

    async def rollyard(self, *words: str, text: str = "", code: int = 0, seconds: float = 120) -> tuple[str, str]:
        """Run a command as the user of this yard; return its standard output and standard error."""
        done = await asyncio.to_thread(forked_commands.run, *words, env=self.user_env, text=text, seconds=seconds)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr

    async def follow(self, *words: str) -> str:
        """Run a command that `processes` finds, to its end; return its standard output."""
        command = [sys.executable, "-m", "rollyard.cli.main", *words]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            capture_output=True,
            text=True,
            env=self.user_env,
            cwd=ROOT,
            timeout=120,
            check=True,
        )
        return done.stdout

    async def jobs(self, *, live: bool = True) -> list[Job]:
        listing = await self.driver.list_jobs()
        return [j for j in listing.jobs.values() if not (live and j.state.ended)]

    def processes(self, *words: str) -> list[int]:
        """Pids of this yard's processes whose command line contains all these words."""
        found = []
        if isinstance(self.server, forked_commands.ForkedProcess) and self.server.poll() is None:
            command = f"rollyard.cli.main serve --data {self.data}"  # /proc has neither its command nor its environment
            found += [self.server.pid] if all(word in command for word in words) else []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _env(entry).get("HOME") == str(self.folder):
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                    if all(word in command for word in words):
                        found.append(int(entry.name))
        return found

    def engines(self, endpoint: str) -> list[int]:
        """Pids of this embedded endpoint's engine; the endpoint has its allocation's name."""
        found, allocation = [], endpoint.rpartition("/")[2].encode()
        for pid in self.processes("rollyard.engine.embedded"):
            with contextlib.suppress(OSError):
                told = [(Path("/proc") / str(pid) / name).read_bytes() for name in ("cmdline", "environ")]
                if allocation in b"".join(told):
                    found.append(pid)
        return found

    def sandboxes(self) -> list[int]:
        """Pids of the launchers: children of the node agents that hold a sandbox."""
        agents = set(self.processes("node-agent"))
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (entry / "cmdline").read_bytes().lower()  # "Apptainer runtime parent"
                    launcher = any(word in command for word in (b"bwrap", b"apptainer", b"starter"))
                    if parent in agents and launcher and b"sandbox/starter" not in command:
                        found.append(int(entry.name))
        return found

    # act

    async def apply(self, client: AsyncClient, **changes: dict[str, Any]) -> None:
        """Apply the demo's two pools, with bubblewrap for sandboxes; `policy` and `demo` change their specs."""
        for text in yaml.safe_load_all((ROOT / "examples" / "demo" / "pools.yaml").read_text()):
            spec = text["spec"]
            if text["kind"] == "InferencePool":
                spec["model"]["path"] = str(MODEL)
            else:  # each parallel EVAL needs a process with an algebra system
                spec["stages"]["eval"]["workers"] = {"min": 1, "max": 2}
                spec["sandbox"]["runtime"] = "bubblewrap"  # starts in half of Apptainer's CPU time
                spec["sandbox"]["warm"] = {"max": 0}  # tests count and kill the sandboxes that rollouts use
            merge(spec, changes.get(text["metadata"]["name"], {}))
            text["metadata"]["namespace"] = "default"
            await client.apply(parse_object(text))

    async def ready(self, client: AsyncClient, seconds: float = 120.0) -> None:
        await self.until(lambda: self._all_ready(client), seconds)

    async def _all_ready(self, client: AsyncClient) -> bool:
        for kind in ("InferencePool", "RolloutPool"):
            pools, _ = await client.list_objects(kind)
            conditions = [(p, get_condition(getattr(p, "status").conditions, "Ready")) for p in pools]  # noqa: B009
            if not pools or not all(
                c is not None and c.status == "True" and c.observed_generation >= p.metadata.generation
                for p, c in conditions
            ):
                return False
        return True

    async def condition(self, client: AsyncClient, kind: str, name: str, reason: str) -> str:
        """Return the message of Ready once it has this reason."""
        key = ObjectKey(kind=kind, namespace="default", name=name)

        async def look() -> str | None:
            found = get_condition(getattr(await client.get(key), "status").conditions, "Ready")  # noqa: B009
            return found.message if found is not None and found.status == "False" and found.reason == reason else None

        message = await self.until(look)
        assert message is not None
        return message

    async def allocations(self, client: AsyncClient) -> list[Allocation]:
        found, _ = await client.list_objects("Allocation")
        return [a for a in found if isinstance(a, Allocation)]

    async def delete_pools(self, client: AsyncClient) -> None:
        """Delete the demo's pools, as far as they exist."""
        for kind, name in (("RolloutPool", "demo"), ("InferencePool", "policy")):
            with contextlib.suppress(NotFound):
                await client.delete(ObjectKey(kind=kind, namespace="default", name=name))

    async def nothing_left(self, client: AsyncClient) -> bool:
        """Return whether no pool, allocation or live job is left."""
        pools = [p for kind in ("InferencePool", "RolloutPool") for p in (await client.list_objects(kind))[0]]
        return not pools and not await self.allocations(client) and not await self.jobs()

    async def until(self, condition: Callable[[], Awaitable[Any]], seconds: float = 120.0) -> Any:
        """Return the first true answer. Fails with the end of the server's log."""
        return await until(
            condition, seconds, least=COSTLY_PAUSE, seen=lambda: (self.folder / "server.log").read_text()[-4000:]
        )

    async def gather(self, client: AsyncClient, ids: list[str], seconds: float = 300.0) -> list[Trajectory]:
        async with asyncio.timeout(seconds):
            return [await client.wait(id) for id in ids]

    async def clean_up(self) -> None:
        """End everything that a test left: the jobs, then the server."""
        self.stop()
        if self.data.exists():
            left = [job.id for job in await self.jobs()]
            await self.driver.cancel(left, "KILL")  # no server is left for a graceful end
            await self.driver.cancel(left)
            async with asyncio.timeout(60):
                while await self.jobs():
                    await asyncio.sleep(0.05)


def requests(
    math: int, code: int, *, n: int = 1, seed: int = 7, prefix: str = "t", **more: Any
) -> list[RolloutRequest]:
    """Make requests for held-out tasks with ids of their own."""
    rng = random.Random(seed)
    tasks = [sample_math(rng, True) for _ in range(math)] + [sample_code(rng, True) for _ in range(code)]
    return [
        RolloutRequest.model_validate(
            {"id": f"{prefix}-{i}", "pool": "demo", "task": Task.model_validate(task), "n": n, **more}
        )
        for i, task in enumerate(tasks)
    ]


@pytest.fixture
async def yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    made = Yard(tmp_path_factory.mktemp("yard"))
    made.start()
    yield made
    await end(made)


@contextlib.asynccontextmanager
async def ready_yard(
    factory: pytest.TempPathFactory, **changes: dict[str, Any]
) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    """A yard with the demo's two pools, once they are ready, and a client. `changes`: as of `Yard.apply`."""
    made = Yard(factory.mktemp("yard"))
    try:
        made.start()
        async with made.client() as client:
            await made.apply(client, **changes)
            await made.ready(client)
            yield made, client
    finally:
        await end(made)


async def end(made: Yard) -> None:
    """End the yard and check that nothing of it is left."""
    await made.clean_up()

    async def nothing_left() -> bool:
        return not made.processes()

    await made.until(nothing_left)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    return start_time(pid) is not None


def merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def _env(process: Path) -> dict[str, str]:
    try:
        pairs = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(p.split("=", 1) for p in pairs if "=" in p)


def endpoint(data: Path) -> str:
    return str(json.loads((data / "endpoint.json").read_text())["url"])
