"""Calls that wait for a server outlast its absence, however the absence shows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web

from rollyard.client import AsyncClient, server_connection, server_link
from rollyard.client import rollout_client as module
from rollyard.client.kubeconfig import Context
from rollyard.client.server_connection import ServerConnection
from rollyard.core.errors import Unavailable
from rollyard.kinds.allocation import LOG_OFFSET
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.batch import BatchStatus, BatchView
from rollyard.trajectory import Trajectory
from rollyard.trajectory.columns import CONTENT_TYPE, encode
from rollyard.trajectory.frames import framed
from simulation.serving import serve_app
from tests.support import make
from tests.support.filled import filled
from tests.support.until import until

LIMIT_SECONDS = 60.0
PATIENCE_SECONDS = 2.0
"""Time for which an impatient client retries. Its first attempt must end earlier."""
ENDED: dict[str, dict[str, Any]] = {
    "view": {
        "id": "r", "namespace": "default", "pool": "demo", "task_kind": "math", "group": None, "sample_index": 0,
        "mode": "train", "priority": 0, "status": "Completed", "stage": None, "attempt": 1, "reward": 1.0,
        "error": None, "node": None, "endpoints": {}, "created_at": 0.0, "finished_at": 1.0, "cursor": 1,
    },
    "trajectory": {
        "id": "r", "group": None, "sample_index": 0, "attempt": 1, "status": "Completed", "reward": 1.0,
        "metrics": {}, "task": {"kind": "math", "problem": "?", "answer": "1"}, "segments": [], "turns": [],
        "timings": {}, "endpoint": None, "node": None, "error": None,
    },
}  # fmt: skip
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Servers:
    """One data folder, and whatever has served it: each answers as a test tells it."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = folder / "endpoint.json"
        self.asked: list[web.Request] = []
        self._running = contextlib.AsyncExitStack()
        self._epoch = 0

    async def start(self, handler: Handler) -> None:
        """From here on this is the server; those before it stay as they are."""

        async def answer(request: web.Request) -> web.StreamResponse:
            self.asked.append(request)
            return await handler(request)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        url = await self._running.enter_async_context(serve_app(app))
        self._epoch += 1
        self.endpoint.write_text(json.dumps({"url": url, "epoch": self._epoch}))

    async def stop(self) -> None:
        await self._running.aclose()


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    made = Servers(tmp_path)
    yield made
    await made.stop()


@pytest.fixture
async def client(servers: Servers) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(Context("http://127.0.0.1:1", None, "token", "default", servers.endpoint)) as made:
        yield made


async def soon(work: Awaitable[T]) -> T:
    """Its outcome; what would last for ever fails."""
    return await asyncio.wait_for(work, LIMIT_SECONDS)


def rollout(view: Mapping[str, Any], trajectory: Mapping[str, Any] | None) -> web.Response:
    found = [] if trajectory is None else [Trajectory.model_validate(trajectory)]
    return web.Response(body=encode(found, {"rollout": view}), content_type=CONTENT_TYPE)


async def ended(_: web.Request) -> web.Response:
    return rollout(**ENDED)


def says_503(times: int, then: Callable[[], web.Response], **headers: str) -> Handler:
    left = [503] * times

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=left.pop(), headers=headers) if left else then()

    return answer


async def test_what_can_be_repeated_is_after_the_time_that_a_503_asks_for(
    servers: Servers, client: AsyncClient
) -> None:
    await servers.start(says_503(1, lambda: web.json_response({"queued": 3}), **{"Retry-After": "1"}))
    began = time.monotonic()
    assert await client.counts() == {"queued": 3}
    assert time.monotonic() - began >= 1.0
    assert len(servers.asked) == 2


async def test_a_creation_is_not_repeated_after_a_503(servers: Servers, client: AsyncClient) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=404 if request.method == "GET" else 503)

    await servers.start(handler)
    with pytest.raises(Unavailable):
        await client.apply(make.rollout_pool("demo"))
    assert [r.method for r in servers.asked] == ["GET", "POST"]


async def test_a_call_that_may_not_be_made_twice_waits_for_a_server_that_takes_no_connections(
    servers: Servers, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backlog is full, so the kernel drops the client's attempts, and nothing of the call is sent."""
    monkeypatch.setattr(server_connection, "CONNECT_SECONDS", 0.5)
    async with contextlib.AsyncExitStack() as sockets:
        full = sockets.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(2):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        servers.endpoint.write_text(json.dumps({"url": f"http://127.0.0.1:{full.getsockname()[1]}", "epoch": 1}))
        said: list[str] = []
        patient = ServerConnection(client.context, said.append)
        sockets.push_async_callback(patient.close)
        call = asyncio.create_task(patient.json("POST", "/v1/rollouts", body={}, repeat=False))
        await until(lambda: bool(said) or call.done())
        assert "ConnectionTimeoutError" in said[0]
        await servers.start(says_503(0, lambda: web.json_response({"made": 1})))
        assert await soon(call) == {"made": 1}
    assert len(servers.asked) == 1


async def test_a_503_that_lasts_is_told(servers: Servers, client: AsyncClient) -> None:
    await servers.start(says_503(10**6, web.Response))
    said: list[str] = []
    async with AsyncClient(client.context, warn=said.append, retry_seconds=PATIENCE_SECONDS) as impatient:
        with pytest.raises(Unavailable, match="HTTP 503"):
            await impatient.get(ObjectKey(kind="RolloutPool", namespace="default", name="demo"))
    assert len(servers.asked) > 1
    assert len(said) == 1
    assert said[0].startswith("the server cannot answer at present: HTTP 503")


async def test_a_server_that_is_down_is_told_at_once_and_without_the_innards_of_ssl(
    servers: Servers, client: AsyncClient
) -> None:
    said: list[str] = []
    async with AsyncClient(client.context, warn=said.append, retry_seconds=PATIENCE_SECONDS) as impatient:
        with pytest.raises(Unavailable, match=r"no answer from http.*Connection refused.*rollyard serve"):
            await impatient.counts()
    assert len(said) == 1
    assert "Connection refused" in said[0]
    assert "SSLContext" not in said[0]


async def test_who_waits_for_a_rollout_outlasts_a_server_that_is_away(servers: Servers, client: AsyncClient) -> None:
    async with AsyncClient(client.context, retry_seconds=0.1) as impatient:
        waiting = asyncio.create_task(impatient.wait("r"))
        for _ in range(2):  # each call of its own gives up meanwhile
            with pytest.raises(Unavailable, match="no answer from"):
                await impatient.counts()
        assert not waiting.done()
        await servers.start(ended)
        assert (await soon(waiting)).reward == 1.0


async def test_who_waits_for_a_rollout_outlasts_503s(servers: Servers, client: AsyncClient) -> None:
    await servers.start(says_503(3, lambda: rollout(**ENDED)))
    async with AsyncClient(client.context, retry_seconds=0.0) as impatient:
        assert (await soon(impatient.wait("r"))).reward == 1.0
    assert len(servers.asked) == 4


async def test_who_waits_may_set_a_limit(servers: Servers, client: AsyncClient) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await client.wait("r")


# what lasts


def freezes(*chunks: bytes, **headers: str) -> Handler:
    """Says this, and then nothing ever again; nothing at all where there is not even a chunk."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if chunks:
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
        await asyncio.Event().wait()
        raise AssertionError

    return answer


def a_pool(version: int) -> bytes:
    pool = {"kind": "RolloutPool", "metadata": {"name": "demo", "resourceVersion": str(version)}}
    return json.dumps({"type": "MODIFIED", "object": {**pool, "spec": {"replicas": 1}}}).encode() + b"\n"


def an_end(cursor: int) -> bytes:
    return framed(encode([Trajectory.model_validate(ENDED["trajectory"])], {"cursors": [cursor]}))


LASTING: dict[str, tuple[Callable[[AsyncClient], Any], bytes, bytes, dict[str, str]]] = {
    "watch": (lambda c: c.watch("RolloutPool"), a_pool(7), a_pool(8), {"resourceVersion": "7"}),
    "stream": (lambda c: c.stream(), an_end(7), an_end(8), {"after": "7"}),
    "logs": (lambda c: c.log("default", "demo-0", follow=True), b"one\n", b"two\n", {"offset": "4"}),
}


@pytest.mark.parametrize("name", LASTING)
@pytest.mark.parametrize("spoken", [True, False])
async def test_what_lasts_goes_on_at_the_next_server_when_one_freezes(
    name: str, spoken: bool, servers: Servers, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_link, "ADDRESS_POLL_SECONDS", 0.05)
    read, first, second, resumed = LASTING[name]
    await servers.start(freezes(*[first] if spoken else [], **{LOG_OFFSET: "0"}))
    found = read(client)
    if spoken:
        await soon(anext(found))
    following = asyncio.ensure_future(anext(found))
    while not servers.asked:
        await asyncio.sleep(0.01)
    await servers.start(freezes(second, **{LOG_OFFSET: "4"}))
    await soon(following)
    assert len(servers.asked) == 2
    assert not spoken or resumed.items() <= dict(servers.asked[1].query).items()
    await found.aclose()


async def test_a_stream_in_which_the_server_falls_silent_is_asked_for_again(
    servers: Servers, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.2)
    await servers.start(freezes(an_end(7)))
    found: Any = client.stream()
    for _ in range(2):
        cursor, _ = await soon(anext(found))
        assert cursor == 7
    assert servers.asked[-1].query["after"] == "7", "a slow machine may have broken the first request too"
    await found.aclose()


async def test_what_a_reader_does_meanwhile_is_left_alone_when_the_server_moves(
    servers: Servers, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_link, "ADDRESS_POLL_SECONDS", 0.01)
    await servers.start(freezes(an_end(7)))
    found: Any = client.stream()
    await soon(anext(found))
    await servers.start(freezes(an_end(8)))
    await asyncio.sleep(0.2)  # several looks at where the server is
    assert (await soon(anext(found)))[0] == 8
    await found.aclose()


async def test_a_wait_that_does_not_end_by_itself_is_told_once(servers: Servers, tmp_path: Path) -> None:
    queued = {**ENDED["view"], "status": "Queued", "stage": "INIT", "reward": None, "finished_at": None}
    words = ["InQueue: 3 are before it", *["WeightsVersion: policy has not served v2 yet; for 2 s"] * 3]
    told: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        if not words:
            return rollout(**ENDED)
        return rollout({**queued, "waiting": words.pop(0)}, None)

    await servers.start(handler)
    context = Context("http://127.0.0.1:1", None, "token", "default", servers.endpoint)
    async with AsyncClient(context, warn=told.append) as client:
        await soon(client.wait_many(["r"]))
    assert told == ["rollout r waits: WeightsVersion: policy has not served v2 yet; for 2 s"]


async def test_a_batch_that_gets_nowhere_says_why_once(servers: Servers, tmp_path: Path) -> None:
    view = {**filled(BatchView), "id": "b", "delivered": 0}
    words: list[str | None] = [None, *(f"the last {n} groups had fewer than 2 rewards" for n in (5, 6, 7))]
    told: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        waiting = words.pop(0) if words else None
        status = BatchStatus.RUNNING if words else BatchStatus.CANCELLED
        batch = BatchView.model_validate({**view, "waiting": waiting, "status": status})
        about = {"groups": [], "next": 0, "batch": batch.model_dump(mode="json")}
        return web.Response(body=encode([], about), content_type=CONTENT_TYPE)

    await servers.start(handler)
    context = Context("http://127.0.0.1:1", None, "token", "default", servers.endpoint)
    async with AsyncClient(context, warn=told.append) as client:
        assert [group async for group in client.batch("b")] == []
    assert told == ["batch b waits: the last 5 groups had fewer than 2 rewards"]


async def test_many_waits_leave_connections_for_other_calls(servers: Servers, client: AsyncClient) -> None:
    """The waits held all connections, so a submit waited for one, and failed after 90 s."""
    over = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if request.path.endswith("/counts"):
            return web.json_response({"queued": 3})
        await over.wait()
        id = request.path.rpartition("/")[2]
        return rollout(**{part: {**fields, "id": id} for part, fields in ENDED.items()})

    await servers.start(handler)
    most = server_connection.WAITS_AT_ONCE
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):  # the waits of all calls count together
            tasks.create_task(soon(client.wait_many([f"r{n}" for n in range(most)])))
        await until(lambda: len(servers.asked) >= most)
        assert await soon(client.counts()) == {"queued": 3}
        assert len(servers.asked) == most + 1
        over.set()
