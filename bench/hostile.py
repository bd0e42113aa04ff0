"""Hostile callers beside 100,000 rollouts: how long others wait meanwhile, how late the server's event loop is, and its memory.

The server is that of `bench.page_site`, in a process of its own. The hostile callers have a token and an address of their own,
and so has the caller beside them, the canary: it asks /healthz, lists 20 rollouts, submits one, and searches.

    python -m bench.hostile [--rollouts 100000] [--seconds 20] [--data FOLDER] [--where]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import math
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import aiohttp

from bench.control_plane import ROOT, cpu_seconds
from bench.export import resident_mb
from bench.page_site import EVALUATION, LONG, BusyServer, _lines, _simulated, store_rollouts
from rollyard.client.async_client import AsyncClient
from rollyard.client.kubeconfig import load_context
from rollyard.server_process import main as server_main
from rollyard.trajectory.columns import CONTENT_TYPE

HOSTILE, CANARY = "127.0.0.2", "127.0.0.1"
CALLERS, SLOW, UNREAD = 1000, 200, 50
TICK_SECONDS, PAUSE_SECONDS, BEGIN_SECONDS, GONE_SECONDS, LATE_SECONDS = 0.005, 0.05, 3.0, 3.0, 0.04
MOST_STACKS, FRAMES = 12, 5
COSTLY = (
    "/v1/rollouts?prefix=g7&sort=-reward&limit=500", "/v1/rollouts?kind=swe&sort=tokens&total=true",
    "/v1/rollouts?metadata=%7B%22split%22%3A%22train%22%7D&sort=-ended", "/v1/rollouts/summary?by=task&limit=2000",
    "/v1/rollouts/summary?by=metadata.difficulty", "/v1/rollouts/profile", f"/v1/evaluations/{EVALUATION}",
    f"/v1/evaluations/{EVALUATION}/tasks", f"/v1/evaluations/{EVALUATION}/comparison?with={EVALUATION}", "/v1/evaluations",
    "/v1/usage", "/v1/nodes?since=0", f"/v1/rollouts/{LONG}", f"/v1/rollouts/{LONG}/tokens", "/v1/rollouts?limit=5000",
)  # fmt: skip
UNENDING = "/v1/rollouts/stream?trajectories=1"


# the server


class LateServer(BusyServer):
    """A server that tells, at each line of standard input, how late its event loop was since the line before."""

    async def run_background(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run_background())
            tasks.create_task(self._tell())

    async def _change(self) -> None:
        """Change nothing: only the callers make work."""

    async def _tell(self) -> None:
        ticks, lines = list[list[float]](), _lines()
        line, before, searches = asyncio.ensure_future(anext(lines)), _spent(), GarbageSearches()
        gc.callbacks.append(searches)
        with _stacks_of_late_loops() if "--where" in sys.argv else contextlib.nullcontext(Stacks()) as stacks:
            while True:
                stacks.began = time.perf_counter()
                await asyncio.sleep(TICK_SECONDS)
                now = _spent()
                seconds, cpu, core = (b - a for a, b in zip(before, now, strict=True))
                ticks.append([seconds - TICK_SECONDS, cpu, core])
                before = now
                if line.done():
                    print(json.dumps([ticks, searches.seconds, stacks.seen.most_common(MOST_STACKS)]), flush=True)
                    ticks, line = [], asyncio.ensure_future(anext(lines))
                    searches.seconds.clear()
                    stacks.seen.clear()


def _spent() -> tuple[float, float, float]:
    """Seconds of the clock, of this thread on a core, and of its waits for a core."""
    cpu, waits, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return time.perf_counter(), int(cpu) / 1e9, int(waits) / 1e9


class GarbageSearches:
    """Searches for garbage among all objects, which stop all threads."""

    def __init__(self) -> None:
        self.seconds = list[float]()
        self._began = 0.0

    def __call__(self, phase: str, about: dict[str, int]) -> None:
        if about["generation"] == 2 and phase == "start":
            self._began = time.perf_counter()
        elif about["generation"] == 2:
            self.seconds.append(time.perf_counter() - self._began)


@dataclass
class Stacks:
    """Places where the threads were while the event loop was late -> number of looks."""

    seen: Counter[str] = field(default_factory=Counter)
    began: float = math.inf
    """Time of the last tick."""


@contextlib.contextmanager
def _stacks_of_late_loops() -> Iterator[Stacks]:
    """Look at all threads every 10 ms while the loop of this thread is late."""
    found, ended, loop = Stacks(), threading.Event(), threading.get_ident()

    def look() -> None:
        while not ended.wait(0.01):
            if time.perf_counter() - found.began > LATE_SECONDS:
                for thread, frame in sys._current_frames().items():
                    if thread != threading.get_ident():
                        found.seen[("loop: " if thread == loop else "thread: ") + _place(frame)] += 1

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()


def _place(frame: FrameType | None) -> str:
    found = list[str]()
    while frame is not None and len(found) < FRAMES:
        found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(found)


def serve(data: Path) -> None:
    server_main.choose_driver = _simulated  # type: ignore[attr-defined,assignment]
    server_main.RollyardServer = LateServer  # type: ignore[misc]
    raise SystemExit(server_main.run(server_main.ServeOptions(data)))


# the caller beside the hostile ones


async def watch(kubeconfig: Path) -> None:
    """Ask one after the other until standard input ends; print the seconds of each question, by its name."""
    taken: dict[str, list[float]] = {}
    context, number = load_context(kubeconfig), itertools.count(time.time_ns())
    body = {"pool": "p0", "task": {"kind": "math", "problem": "1+1", "answer": "2"}}
    asked: dict[str, tuple[str, str]] = {
        "healthz": ("GET", "/healthz"),
        "list of 20": ("GET", "/v1/rollouts?limit=20"),
        "submit": ("POST", "/v1/rollouts"),
        "search": ("GET", "/v1/rollouts?prefix=g70&sort=-ended&limit=20"),
    }
    ended = asyncio.ensure_future(anext(_lines()))
    async with _session(kubeconfig, CANARY) as http:
        print("ready", flush=True)
        while not ended.done():
            for name, (method, path) in asked.items():
                began = time.perf_counter()
                given = {**body, "id": f"canary-{next(number)}"} if method == "POST" else None
                async with http.request(method, context.url + path, json=given) as answer:
                    await answer.read()
                    assert answer.status in (200, 202), await answer.text()
                taken.setdefault(name, []).append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_SECONDS)
    print(json.dumps(taken))


def _session(kubeconfig: Path, address: str) -> aiohttp.ClientSession:
    context = load_context(kubeconfig)
    connector = aiohttp.TCPConnector(ssl=context.tls(), limit=0, local_addr=(address, 0))
    headers = {"Authorization": f"Bearer {context.token}"}
    return aiohttp.ClientSession(connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=None))


# the hostile ones


class Hostile:
    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig, self.context = kubeconfig, load_context(kubeconfig)
        self.told = Counter[str]()
        """Answers and errors that the callers got -> their number."""

    async def none(self) -> None:
        await asyncio.Event().wait()

    async def costly(self) -> None:
        """1,000 callers ask for costly answers, one after the other, and wait as long as a refusal says."""
        await self._many(CALLERS, lambda http, rng: self._ask(http, rng, waits=True))

    async def greedy(self) -> None:
        """They ask again at once."""
        await self._many(CALLERS, lambda http, rng: self._ask(http, rng, waits=False))

    async def slow(self) -> None:
        """200 callers ask for large answers and hardly read, in each second another byte."""

        async def read(http: aiohttp.ClientSession, rng: random.Random) -> None:
            path = rng.choice((f"/v1/rollouts/{LONG}", "/v1/rollouts?limit=5000", UNENDING))
            async with http.get(self.context.url + path, read_bufsize=1024) as answer:
                self.told[str(answer.status)] += 1
                while await answer.content.read(1):
                    await asyncio.sleep(1)

        await self._many(SLOW, read)

    async def unread(self) -> None:
        """50 callers begin an export and read nothing of it, while an export by the command's client is read."""

        async def begin(http: aiohttp.ClientSession, rng: random.Random) -> None:
            headers = {"Accept": CONTENT_TYPE}
            async with http.get(self.context.url + UNENDING, headers=headers, read_bufsize=1024):
                await asyncio.Event().wait()

        async def export() -> None:
            async with AsyncClient(kubeconfig=self.kubeconfig) as client:
                while True:
                    upto, _ = await client.newest_cursor()
                    found = [len(columns) async for _, columns in client.stream_columns(upto=upto)]
                    self.told[f"an export of {sum(found)} rollouts"] += 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._many(UNREAD, begin))
            tasks.create_task(export())

    async def half_closed(self) -> None:
        """200 connections after another ask and close their end for writing, or all at once."""
        host, tls = urlsplit(self.context.url), self.context.tls()

        def leave(path: str, *, half: bool) -> None:
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.context.token}\r\n\r\n"
            plain = socket.create_connection((host.hostname, host.port), 30, source_address=(HOSTILE, 0))
            with plain, tls.wrap_socket(plain, server_hostname=host.hostname) as secured:
                secured.sendall(request.encode())
                if half:
                    secured.shutdown(socket.SHUT_WR)
                    time.sleep(1)
            self.told["half closed" if half else "closed"] += 1

        async def go(_: aiohttp.ClientSession, rng: random.Random) -> None:
            while True:
                with contextlib.suppress(OSError, ssl.SSLError):
                    await asyncio.to_thread(leave, rng.choice(COSTLY), half=rng.random() < 0.5)

        await self._many(SLOW, go)

    async def _many(self, count: int, call: Callable[[aiohttp.ClientSession, random.Random], Awaitable[None]]) -> None:
        async def again(rng: random.Random) -> None:
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    await call(http, rng)

        async with _session(self.kubeconfig, HOSTILE) as http, asyncio.TaskGroup() as tasks:
            for n in range(count):
                tasks.create_task(again(random.Random(n)))

    async def _ask(self, http: aiohttp.ClientSession, rng: random.Random, *, waits: bool) -> None:
        async with http.get(self.context.url + rng.choice(COSTLY)) as answer:
            await answer.read()
            self.told[str(answer.status)] += 1
            if waits and answer.status == 503:
                await asyncio.sleep(int(answer.headers["Retry-After"]))


# the figures


def spread(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return "/".join(
        f"{1000 * ordered[min(len(ordered) * share // 100, len(ordered) - 1)]:.0f}" for share in (50, 95, 100)
    )


async def greatest_memory(pid: int, found: list[float]) -> None:
    """Keep the greatest memory of a process in `found`, in MB."""
    while True:
        found[:] = [max(resident_mb(pid), *found)]
        await asyncio.sleep(0.2)


async def measure(data: Path, seconds: float, names: Sequence[str], *, where: bool) -> None:
    server = await _run("--serve", "--data", str(data), *(["--where"] if where else []), home=data.parent)
    try:
        kubeconfig = Path(json.loads(await _line(server))["kubeconfig"])
        print(
            "median/p95/greatest in ms; CPU: share of a core of the server; MB: its memory before, at most, and afterwards"
        )
        for name in names:
            hostile, megabytes = Hostile(kubeconfig), resident_mb(server.pid)
            most = [megabytes]
            looking = asyncio.create_task(greatest_memory(server.pid, most))
            under_way = asyncio.create_task(getattr(hostile, name)())
            await asyncio.sleep(BEGIN_SECONDS)
            beside = await _run("--watch", str(kubeconfig), home=data.parent)
            await _line(beside)
            await _line(server, "\n")  # what was before does not count
            before, began = cpu_seconds(server.pid), time.perf_counter()
            await asyncio.sleep(seconds)
            taken = json.loads(await _line(beside, "\n"))
            share = (cpu_seconds(server.pid) - before) / (time.perf_counter() - began)
            ticks, searches, stacks = json.loads(await _line(server, "\n"))
            under_way.cancel()
            await asyncio.gather(under_way, return_exceptions=True)
            await beside.wait()
            await asyncio.sleep(GONE_SECONDS)
            looking.cancel()
            waited = ", ".join(f"{what} {spread(values)}" for what, values in taken.items())
            late, busy, _ = zip(*ticks, strict=True)
            longest, cpu, core = (1000 * value for value in max(ticks))
            own = f"its own CPU time {spread(busy)}, longest gap {longest:.0f}: CPU {cpu:.0f}"
            print(f"{name}: loop late {spread(late)}, {own}, "
                  f"waits for a core {core:.0f}; {len(searches)} searches for garbage, "
                  f"longest {1000 * max(searches, default=0):.0f}; {waited}; CPU {share:.0%}, "
                  f"{megabytes:.0f}, {most[0]:.0f}, {resident_mb(server.pid):.0f} MB, "
                  f"load {os.getloadavg()[0]:.0f}; {dict(hostile.told.most_common(5))}", flush=True)  # fmt: skip
            for place, looks in stacks:
                print(f"  {looks} {place}", flush=True)
    finally:
        server.terminate()
        await server.wait()


async def _run(*words: str, home: Path) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "bench.hostile", *words)
    return await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, limit=64 << 20,
        env={**os.environ, "HOME": str(home)},
    )  # fmt: skip


async def _line(process: asyncio.subprocess.Process, text: str = "") -> bytes:
    """Write a text, and return the next line."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(text.encode())
    return await process.stdout.readline()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scenes = ("none", "costly", "greedy", "slow", "unread", "half_closed")
    options.add_argument("--rollouts", type=int, default=100_000)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--scenes", nargs="+", choices=scenes, default=scenes)
    options.add_argument("--data", type=Path, help="a folder of an earlier run")
    options.add_argument(
        "--where", action="store_true", help="print where the threads were while the event loop was late"
    )
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--watch", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.serve:
        serve(given.data)
    if given.watch:
        asyncio.run(watch(given.watch))
        return
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as folder:
        data = given.data or Path(folder, "data")
        if not data.exists():
            asyncio.run(store_rollouts(data, given.rollouts, 0))
        asyncio.run(measure(data, given.seconds, given.scenes, where=given.where))


if __name__ == "__main__":
    main()
