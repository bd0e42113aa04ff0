"""Speed of the server: null rollouts a second from submit to result, durable, and long trajectories to their client.

The server is real, in a process of its own, with TLS and synchronous=FULL. The node agent is simulated in another
process: it takes leases and answers at once. The baseline is a service of the common kind, a queue and a dictionary in
memory behind the same HTTP library and the same TLS, that loses everything when it stops.

Long trajectories go from the node agent, which makes and compresses each one, over the server's disk to a client, which is
a process of its own. They travel as columns; the baseline is JSON, with everything else the same.

    python -m bench.control_plane [--rollouts 3000] [--trajectories 600]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import numpy as np
from aiohttp import web

from rollyard.client import AsyncClient
from rollyard.client.node_connection import NodeConnection
from rollyard.client.server_connection import lines
from rollyard.client.server_link import ServerLink
from rollyard.core.freed_memory import keep_freed_memory
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectMeta
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout import RolloutRequest, Stage, Status
from rollyard.kinds.rollout_pool import RolloutPool, RolloutPoolSpec
from rollyard.node.result_uploads import ResultUploads
from rollyard.trajectory import Outcome, Segment, Trajectory
from rollyard.trajectory.columns import decode, encode
from rollyard.trust.ca import Authority
from rollyard.trust.tls_contexts import server_ssl_context
from rollyard.wire.node import CapacityRequest, Grant, Heartbeat, Hello, Lease, LeaseRef, ToNode

ROOT = Path(__file__).resolve().parents[1]
BATCH = 100
RATE = 1000
"""Rollouts a second while the time of a submit is measured."""
PROBE_SECONDS = 0.04
SUBMIT_SECONDS = 12.0
"""Time of the submits that are measured: 300 of one rollout, and 120 of BATCH rollouts."""
Null = tuple[float, float, float, list[float], list[float]]
"""Rollouts a second, CPU ms a rollout of the server, and of node agent and client; seconds of submits of one and of BATCH
rollouts."""
Long = tuple[float, float, float]
"""Trajectories a second, CPU ms a trajectory of the server and of the node agent."""
ROOM = 64
LONG_TOKENS = 32_768
JSON_SHARE = 10
"""Number of trajectories as columns for each one as JSON, which takes ten times as long."""
DECODED = 256
MODEL = "policy"
TASK = {"kind": "math", "problem": "1+1", "answer": "2"}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, default=3000)
    options.add_argument("--trajectories", type=int, default=600)
    options.add_argument("--baseline-server", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--read", nargs=4, help=argparse.SUPPRESS)
    options.add_argument("--node", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.read:
        form, kubeconfig, after, n = given.read
        asyncio.run(_read(form, Path(kubeconfig), int(after), int(n)))
        return
    if given.baseline_server:
        asyncio.run(_serve_baseline(given.baseline_server))
        return
    if given.node:
        keep_freed_memory()  # as node agents do
        asyncio.run(_answer_leases(Path(given.node[0]), given.node[1]))
        return
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as folder:
        with started(["-m", "rollyard.cli.main", "serve", "--data", f"{folder}/data"], folder) as (pid, line):
            ours, arrays, texts = asyncio.run(
                _ours(Path(json.loads(line)["kubeconfig"]), pid, given.rollouts, given.trajectories)
            )
        with started(["-m", "bench.control_plane", "--baseline-server", folder], folder) as (pid, line):
            theirs = asyncio.run(_baseline(Path(folder), json.loads(line)["url"], pid, given.rollouts))
    print(f"{'':42}{'ours':>10}{'baseline':>10}{'ratio':>8}")
    print(f"{'node agent and client CPU ms a rollout':42}{ours[2]:10.2f}")
    for name, seconds in (("one rollout", ours[3]), (f"{BATCH} rollouts", ours[4])):
        ordered = sorted(seconds)
        p50, p99, most = (ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000 for share in (0.5, 0.99, 1))
        print(f"submit of {name} at {RATE} a second, ms: median {p50:.0f}, p99 {p99:.0f}, greatest {most:.0f}")
    made = outcome()
    columns_mb, json_mb = len(encode([made])) / 1e6, len(made.model_dump_json()) / 1e6
    for name, a, b in (
        ("null rollouts a second", ours[0], theirs[0]),
        ("server CPU ms a rollout", ours[1], theirs[1]),
        (f"{LONG_TOKENS}-token trajectories a second", arrays[0], texts[0]),
        ("MB a second of them", arrays[0] * columns_mb, texts[0] * json_mb),
        ("server CPU ms a trajectory", arrays[1], texts[1]),
        ("node agent CPU ms a trajectory", arrays[2], texts[2]),
        (f"decoding {DECODED} of them, s: arrays", *_decoding(made, lambda data: decode(data))),
        (f"decoding {DECODED} of them, s: lists", *_decoding(made, lambda data: decode(data).trajectories())),
    ):
        print(f"{name:42}{a:10.2f}{b:10.2f}{a / b:8.2f}")
    print(f"load average of the last minute: {os.getloadavg()[0]:.0f}, with these processes")


@contextmanager
def started(arguments: list[str], home: str) -> Iterator[tuple[int, str]]:
    env = {**os.environ, "HOME": home}
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ours


async def _ours(kubeconfig: Path, pid: int, rollouts: int, trajectories: int) -> tuple[Null, Long, Long]:
    async with (
        AsyncClient(kubeconfig=kubeconfig) as client,
        null_pool(client, kubeconfig.parent, 1) as ((folder, job),),
    ):
        with _node_process(folder, job) as node:
            pids = pid, node.pid
            null = await _measure(client, pids, rollouts)
            _ask_for_long_results(node)
            arrays = await _deliver(client, pids, kubeconfig, trajectories, "columns")
            texts = await _deliver(client, pids, kubeconfig, trajectories // JSON_SHARE, "json")
    return null, arrays, texts


@contextmanager
def _node_process(folder: Path, job: str) -> Iterator[subprocess.Popen[str]]:
    """Run the simulated node agent in a process of its own, so that its work does not delay the measured client."""
    command = [sys.executable, "-m", "bench.control_plane", "--node", str(folder), job]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def _ask_for_long_results(process: subprocess.Popen[str]) -> None:
    """Let the node agent answer with long results; return when it does."""
    assert process.stdin is not None
    assert process.stdout is not None
    print("long", file=process.stdin, flush=True)
    process.stdout.readline()


async def _answer_leases(folder: Path, job: str) -> None:
    """Answer leases until killed. After a line on standard input the results are long."""
    os.environ["SLURM_JOB_ID"] = job
    link = ServerLink.open(folder)
    async with link.session() as http:
        node = NullNode(link, http)
        task = asyncio.create_task(node.run())
        while await asyncio.to_thread(sys.stdin.readline):
            node.outcome = outcome()
            print("done", flush=True)
        task.cancel()


@asynccontextmanager
async def null_pool(
    client: AsyncClient, data: Path, nodes: int, **fields: object
) -> AsyncIterator[list[tuple[Path, str]]]:
    """Run the pool `null`, whose jobs only sleep; yields the folder and the job id of each allocation. `fields`: of spec."""
    async with _model_server() as url:
        allocation = {"setup": "exec sleep 3600", "timeLimit": "01:00:00"}
        given = {"replicas": nodes, "allocation": allocation, "inference": {"policy": MODEL}} | fields
        spec = RolloutPoolSpec.model_validate(given)
        external = {"model": {"path": "/", "servedName": MODEL}, "engine": {"external": {"endpoints": [{"url": url}]}}}
        await client.apply(InferencePool.model_validate({"metadata": {"name": MODEL}, "spec": external}))
        pool = RolloutPool(metadata=ObjectMeta(name="null"), spec=spec)
        await client.apply(pool)
        yield await _bound(client, data, nodes)
        await client.delete(pool.key)
        while (await client.list_objects("Allocation"))[0]:
            await asyncio.sleep(0.1)


async def _bound(client: AsyncClient, data: Path, nodes: int) -> list[tuple[Path, str]]:
    async with asyncio.timeout(60):
        while True:
            there = [a for a in (await client.list_objects("Allocation"))[0] if isinstance(a, Allocation)]
            jobs = [(data / "allocations" / f"default.{a.metadata.name}", a.status.job_id) for a in there]
            if len(found := [(folder, job) for folder, job in jobs if job]) == nodes:
                return found
            await asyncio.sleep(0.05)


async def _measure(client: AsyncClient, pids: tuple[int, int], n: int) -> Null:
    """`pids`: of the server and of the node agent."""

    def cpu() -> tuple[float, float]:
        return cpu_seconds(pids[0]), cpu_seconds(pids[1]) + time.process_time()

    await _run(client, BATCH, "warm")
    before, then = time.perf_counter(), cpu()
    await _run(client, n, "null")
    rate = n / (time.perf_counter() - before)
    cpu_ms, own_ms = ((now - earlier) / n * 1000 for now, earlier in zip(cpu(), then, strict=True))
    one, many = await asyncio.gather(
        _timed_submits(client, "one", 1, PROBE_SECONDS, SUBMIT_SECONDS),
        _timed_submits(client, "many", BATCH, BATCH / RATE, SUBMIT_SECONDS),
    )
    await _run(client, BATCH, "last")
    return rate, cpu_ms, own_ms, one, many


async def _timed_submits(client: AsyncClient, prefix: str, size: int, every: float, seconds: float) -> list[float]:
    """Submit `size` rollouts each `every` seconds, whether earlier submits have been answered or not; return their times."""

    async def timed(i: int) -> float:
        before = time.perf_counter()
        await submit(client, size, f"{prefix}-{i}")
        return time.perf_counter() - before

    begun: list[asyncio.Task[float]] = []
    start = time.perf_counter()
    for i in range(int(seconds / every)):
        await asyncio.sleep(start + i * every - time.perf_counter())
        begun.append(asyncio.create_task(timed(i)))
    return await asyncio.gather(*begun)


async def _run(client: AsyncClient, n: int, prefix: str) -> None:
    """Submit n rollouts and wait for the terminal record of each."""
    await submit(client, n, prefix)
    for i in reversed(range(n)):
        view, _ = await client.rollout(f"{prefix}-{i}", wait=60)
        assert view.status is Status.COMPLETED
        if i < n - BATCH:
            break
    while (await client.counts(pool="null"))["queued"]:
        await asyncio.sleep(0.01)


async def submit(client: AsyncClient, n: int, prefix: str) -> None:
    for start in range(0, n, BATCH):
        batch = [RolloutRequest.model_validate({"id": f"{prefix}-{i}", "pool": "null", "task": TASK})
                 for i in range(start, min(n, start + BATCH))]  # fmt: skip
        await client.submit(batch)


async def _deliver(client: AsyncClient, pids: tuple[int, int], kubeconfig: Path, n: int, form: str) -> Long:
    """Submit n rollouts, which a client in another process reads as they end. `pids`: of the server and of the node agent."""
    after = max([view.cursor or 0 async for view in client.rollouts(pool="null")])
    command = [sys.executable, "-m", "bench.control_plane", "--read", form, str(kubeconfig), str(after), str(n)]
    reader = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
    assert reader.stdout is not None
    await reader.stdout.readline()
    before, then = time.perf_counter(), [cpu_seconds(pid) for pid in pids]
    await submit(client, n, form)
    await reader.stdout.readline()
    seconds = time.perf_counter() - before
    server, node = ((cpu_seconds(pid) - earlier) / n * 1000 for pid, earlier in zip(pids, then, strict=True))
    await reader.wait()
    return n / seconds, server, node


async def _read(form: str, kubeconfig: Path, after: int, n: int) -> None:
    """Read n trajectories; print a line at the beginning and at the end."""
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        await client.counts()
        print("reading", flush=True)
        columns = form == "columns"
        stream = client.stream_columns(pool="null", after=after) if columns else _json_stream(client, "null", after)
        async with aclosing(stream):
            async for _, found in stream:
                n -= len(found)
                if n <= 0:
                    break
        print("done", flush=True)


async def _json_stream(client: AsyncClient, pool: str, after: int) -> AsyncGenerator[tuple[int, list[Trajectory]]]:
    query = {"pool": pool, "after": str(after), "trajectories": "1"}
    async with client._http.stream("/v1/rollouts/stream", query) as answer:
        async for line in lines(answer):
            if line.startswith(b"data: "):
                yield 0, [Trajectory.model_validate_json(line[6:])]


def _decoding(outcome: Outcome, read: Callable[[bytes], object]) -> tuple[float, float]:
    """Seconds to decode DECODED trajectories: columns in one file, and JSON."""
    known = {"id": "r", "group": None, "sample_index": 0, "attempt": 1, "task": TASK}
    one = Trajectory.model_validate(outcome.model_dump() | known)
    data, text = encode([one] * DECODED), one.model_dump_json()
    before = time.perf_counter()
    read(data)
    between = time.perf_counter()
    for _ in range(DECODED):
        Trajectory.model_validate_json(text)
    return between - before, time.perf_counter() - between


class NullNode:
    """A node agent that answers at once."""

    def __init__(self, link: ServerLink, http: aiohttp.ClientSession) -> None:
        self.outcome = outcome(tokens=2, prompt=1)
        self.tasks: set[asyncio.Task[None]] = set()
        self._held: dict[str, LeaseRef] = {}
        self._identity = link.identity()
        self.uploads = ResultUploads(link, http)
        self.line = NodeConnection(link, http)

    async def run(self) -> None:
        while True:
            opened = await self.line.open(self._hello)
            self._start(self._want())
            await self.line.receive(opened, self._hear)

    def _hello(self) -> Hello:
        return Hello(identity=self._identity, held=list(self._held.values()))

    async def _hear(self, message: ToNode) -> None:
        if isinstance(message, Grant):
            for lease in message.leases:
                self._start(self._answer(lease))

    def _start(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _want(self) -> None:
        await self.line.send(CapacityRequest(init=ROOM - len(self._held), kinds=["math"]))

    async def _answer(self, lease: Lease) -> None:
        ref = LeaseRef(namespace=lease.namespace, id=lease.id, fence=lease.fence, stage=Stage.INIT)
        self._held[lease.id] = ref
        await self.uploads.result(ref, self.outcome)
        del self._held[lease.id]
        if len(self._held) % 16 == 0:
            await self.line.send(Heartbeat(held=list(self._held.values())))
            await self._want()


@asynccontextmanager
async def _model_server() -> AsyncIterator[str]:
    """Run a server that answers probes, because rollouts are dispatched only with a ready one; yields its URL."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL}]})

    async def complete(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"text": "x", "token_ids": [7]}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", complete)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def outcome(tokens: int = LONG_TOKENS, prompt: int = 501) -> Outcome:
    rng = random.Random(0)
    ids = [rng.randrange(150_000) for _ in range(tokens)]
    mask = [int(i >= prompt) for i in range(tokens)]
    logprobs = [float(np.float32(-rng.random() * 3)) if m else None for m in mask]  # as engines compute them
    versions = ["3f2a90cd11e0" if m else None for m in mask]
    segment = Segment(token_ids=ids, loss_mask=mask, logprobs=logprobs, weights_version=versions, prompt_length=prompt)
    return Outcome(status=Status.COMPLETED, reward=1.0, node="bench", segments=[segment])


# baselines


async def _serve_baseline(folder: Path) -> None:
    """Serve the baseline: a queue and a dictionary."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    results: dict[str, bytes] = {}

    async def submit(request: web.Request) -> web.Response:
        for row in (await request.json())["rollouts"]:
            queue.put_nowait(row["id"])
        return web.json_response({"accepted": True})

    async def take(_: web.Request) -> web.Response:
        got = [await queue.get()]
        while len(got) < ROOM and not queue.empty():
            got.append(queue.get_nowait())
        return web.json_response(got)

    async def put(request: web.Request) -> web.Response:
        results[request.match_info["id"]] = await request.read()
        return web.Response(status=204)

    async def count(_: web.Request) -> web.Response:
        return web.json_response(len(results))

    app = web.Application()
    app.add_routes([web.post("/r", submit), web.get("/take", take), web.put("/r/{id}", put), web.get("/count", count)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    authority = Authority.open(folder / "baseline")
    (folder / "baseline-ca.pem").write_text(authority.ca_pem)
    tls = server_ssl_context(authority.server_certificate(["127.0.0.1"]))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    print(json.dumps({"url": f"https://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
    await asyncio.Event().wait()


async def _baseline(folder: Path, url: str, pid: int, n: int) -> tuple[float, float]:
    body = outcome(tokens=2, prompt=1).model_dump_json().encode()
    tls = ssl.create_default_context(cafile=str(folder / "baseline-ca.pem"))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=64)) as http:

        async def node() -> None:
            while True:
                async with http.get(f"{url}/take") as answer:
                    ids = await answer.json()
                await asyncio.gather(*(put(id) for id in ids))

        async def put(id: str) -> None:
            async with http.put(f"{url}/r/{id}", data=body) as answer:
                await answer.read()

        task = asyncio.create_task(node())
        before, cpu = time.perf_counter(), cpu_seconds(pid)
        for start in range(0, n, BATCH):
            rows = [{"id": str(i), "pool": "null", "task": TASK} for i in range(start, min(n, start + BATCH))]
            async with http.post(f"{url}/r", json={"rollouts": rows}) as answer:
                await answer.read()
        while True:
            async with http.get(f"{url}/count") as answer:
                if await answer.json() == n:
                    break
            await asyncio.sleep(0.01)
        seconds = time.perf_counter() - before
        task.cancel()
    return n / seconds, (cpu_seconds(pid) - cpu) / n * 1000


if __name__ == "__main__":
    main()
