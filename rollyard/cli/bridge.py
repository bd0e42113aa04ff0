"""`rollyard bridge`: processes that speak another framework's protocol."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
import signal
from pathlib import Path
from typing import get_args

import click

from rollyard.cli.options import with_client
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import Unavailable
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.values.quantity import size_bytes
from rollyard.kinds.values.runtime_name import RuntimeName

FILES_OF_A_SANDBOX = 8
"""Open files of one sandbox and its calls, with a margin: three sockets and a connection are usual."""


@click.group()
def bridge() -> None:
    """Run a process that speaks another framework's protocol.

    The process runs what the framework asks for as rollouts; `verl-tool` runs it in sandboxes of its own. The process
    serves only the user who started it, on this machine. It holds no result of a rollout: a new process goes on where a
    killed one stopped.
    """


@bridge.command("nemo-gym")
@click.option("--pool", required=True, help="RolloutPool that runs the rows")
@click.option("--listen", default="127.0.0.1:18700", show_default=True, help="ADDRESS:PORT of this machine")
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    help="file that remembers which results were handed out  [default: one for each pool, in ~/.local/state/rollyard]",
)
@with_client
async def nemo_gym(client: AsyncClient, namespace: str, pool: str, listen: str, state: Path | None) -> None:
    """Serve NeMo Gym as an agent server."""
    from rollyard.bridges.listener import LoopbackAddress, serve
    from rollyard.bridges.nemo_gym.handed_out import HandedOut
    from rollyard.bridges.nemo_gym.routes import NemoGymBridge

    await _check_pool(client, namespace, pool)
    address, handed_out = LoopbackAddress.parse(listen), HandedOut(state or _state_file(client, namespace, pool))
    try:
        routes = NemoGymBridge(client, handed_out, pool, namespace).routes()
        await serve(routes, address, lambda url: click.echo(f"serving NeMo Gym at {url} with pool {namespace}/{pool}"))
    finally:
        handed_out.close()


@bridge.command("prorl-agent")
@click.option("--pool", required=True, help="RolloutPool that runs the instances")
@click.option("--listen", default="127.0.0.1:8006", show_default=True, help="ADDRESS:PORT of this machine")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="SOURCE=KIND",
    help="task kind for a `data_source` of the instances, such as deepscaler=math; may be repeated",
)
@click.option(
    "--inference-pool", help="InferencePool of external servers that /add_llm_server and /clear_llm_server change"
)
@with_client
async def prorl_agent(
    client: AsyncClient, namespace: str, pool: str, listen: str, kinds: tuple[str, ...], inference_pool: str | None
) -> None:
    """Serve the HTTP interface of ProRL Agent's first version."""
    from rollyard.bridges.listener import LoopbackAddress, serve
    from rollyard.bridges.prorl_agent.routes import ProrlAgentBridge

    pairs = dict[str, str]()
    for pair in kinds:
        source, equals, kind = pair.partition("=")
        if not (source and equals and kind):
            raise click.UsageError(f"--kind {pair}: write SOURCE=KIND, such as deepscaler=math")
        pairs[source] = kind
    await _check_pool(client, namespace, pool)
    routes = ProrlAgentBridge(client, namespace, pool, pairs, inference_pool).routes()
    address = LoopbackAddress.parse(listen)
    await serve(routes, address, lambda url: click.echo(f"serving ProRL Agent at {url} with pool {namespace}/{pool}"))


@bridge.command("agent-lightning")
@click.option("--pool", required=True, help="RolloutPool that runs the rollouts")
@click.option("--url", required=True, help="URL of Agent Lightning's server; its key is read from $AGL_KEY")
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="further rollouts after one that ended InfraFailed",
)
@click.option(
    "--poll", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="seconds between two looks"
)
@with_client
async def agent_lightning(client: AsyncClient, namespace: str, pool: str, url: str, retries: int, poll: float) -> None:
    """Run the queued rollouts of an Agent Lightning server, as its rollout controller."""
    import aiohttp

    from rollyard.bridges.agent_lightning.agl_api import AglApi
    from rollyard.bridges.agent_lightning.controller import AglController

    await _check_pool(client, namespace, pool)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        agl = AglApi(http, url, os.environ.get("AGL_KEY", ""))
        controller = AglController(agl, client, namespace, pool, retries=retries, poll_seconds=poll)
        click.echo(f"running the rollouts of {url} in pool {namespace}/{pool}")
        work = asyncio.create_task(controller.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work


@bridge.command("verl-tool")
@click.option("--listen", default="127.0.0.1:5000", show_default=True, help="ADDRESS:PORT of this machine")
@click.option("--image", help="sandbox image: a .sif file or a folder  [default: this machine's /usr, read-only]")
@click.option(
    "--runtime",
    type=click.Choice(get_args(RuntimeName)),
    default="auto",
    show_default=True,
    help="auto: the first that works on this machine",
)
@click.option("--sandboxes", type=click.IntRange(min=1), default=256, show_default=True, help="open at the same time")
@click.option("--cpus", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="of one sandbox")
@click.option("--memory", default="2G", show_default=True, help="of one sandbox")
@click.option("--disk", default="1G", show_default=True, help="of one file that a sandbox writes")
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="time limit of one action"
)
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0.1),
    default=900.0,
    show_default=True,
    help="a sandbox ends after this time without an action",
)
def verl_tool(
    listen: str,
    image: str | None,
    runtime: RuntimeName,
    sandboxes: int,
    cpus: float,
    memory: str,
    disk: str,
    seconds: float,
    idle_seconds: float,
) -> None:
    """Serve VeRL-Tool as its tool server, with sandboxes on this machine. It needs no Rollyard server."""
    from rollyard.bridges.listener import LoopbackAddress, serve
    from rollyard.bridges.verl_tool.routes import VerlToolBridge
    from rollyard.bridges.verl_tool.trajectory_sandboxes import TrajectorySandboxes
    from rollyard.core.aio import running
    from rollyard.images.named_image import named_image
    from rollyard.sandbox.base import Limits, SandboxSpec
    from rollyard.sandbox.find_runtime import find_runtime
    from rollyard.sandbox.sandbox_factory import SandboxFactory

    try:
        named = None if image is None else named_image(image)
        spec = SandboxSpec(named, Limits(cpus, size_bytes(memory), size_bytes(disk)))
    except ValueError as error:
        raise click.UsageError(f"--memory, --disk: {error}") from None
    address = LoopbackAddress.parse(listen)
    _open_more_files(1024 + FILES_OF_A_SANDBOX * sandboxes)

    async def body() -> None:
        async with SandboxFactory(await asyncio.to_thread(find_runtime, runtime)) as factory:
            await (await factory.start(spec)).close()  # a wrong image is an error now, not at the first action
            held = TrajectorySandboxes(lambda: factory.start(spec), sandboxes, idle_seconds)
            async with running(held.end_idle_ones()):
                routes = VerlToolBridge(held, seconds).routes()
                await serve(routes, address, lambda url: click.echo(f"serving VeRL-Tool at {url}"))

    asyncio.run(body())


def _open_more_files(count: int) -> None:
    """Raise the process's limit of open files. Raises UsageError if the machine does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and hard < count:
        raise click.UsageError(
            f"so many sandboxes need {count} open files: lower --sandboxes, or raise `ulimit -Hn` ({hard})"
        )
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


async def _check_pool(client: AsyncClient, namespace: str, pool: str) -> None:
    """Raise NotFound if there is no such pool: each row would fail for good. Wait at most 5 s for the server."""
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(5):
            await client.get(ObjectKey(kind="RolloutPool", namespace=namespace, name=pool))


def _state_file(client: AsyncClient, namespace: str, pool: str) -> Path:
    """Return the default file for the pool of this server."""
    server = hashlib.sha256((client.context.ca_pem or "").encode()).hexdigest()[:8]
    return Path.home() / ".local" / "state" / "rollyard" / f"nemo-gym-{server}-{namespace}-{pool}.sqlite"
