"""Shared storage that stalls under `endpoint.json` holds up who asks for the server, and no one else on that loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollyard.client import AsyncClient
from rollyard.client.kubeconfig import Context
from rollyard.client.node_connection import NodeConnection
from rollyard.kinds.rollout import Stage, Status
from rollyard.node.result_uploads import ResultUploads
from rollyard.trajectory import Outcome
from rollyard.wire.node import Hello, LeaseRef
from tests.support import make

LIMIT_SECONDS = 60.0
REF = LeaseRef(namespace="default", id="r", fence=1, stage=Stage.RUN)


class StalledFile:
    """A pipe in a file's place: who reads it waits until this test ends, or, on the test's own loop, for `LIMIT_SECONDS`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rescued = threading.Event()
        os.mkfifo(path)

    def rescue(self) -> None:
        self.rescued.set()
        with contextlib.suppress(OSError):
            os.close(self.open())

    def open(self) -> int:
        """Raises OSError while nobody reads it."""
        return os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[StalledFile]:
    made = StalledFile(tmp_path / "endpoint.json")
    timer = threading.Timer(LIMIT_SECONDS, made.rescue)
    timer.start()
    yield made
    timer.cancel()
    timer.join()


async def heartbeat(file: Path) -> None:
    link = make.server_link(file)
    async with link.session() as http:
        await link.post(http, "/v1/engine/heartbeat", "{}")


async def connect(file: Path) -> None:
    link = make.server_link(file)
    async with link.session() as http:
        await NodeConnection(link, http).open(lambda: Hello(identity=link.identity()))


async def upload(file: Path) -> None:
    link = make.server_link(file)
    async with link.session() as http:
        await ResultUploads(link, http).result(REF, Outcome(status=Status.COMPLETED))


async def fetch(file: Path) -> None:
    link = make.server_link(file)
    async with link.session() as http:
        await ResultUploads(link, http).stored_run(REF)


async def ask(file: Path) -> None:
    async with AsyncClient(Context("http://127.0.0.1:1", None, "token", "default", file)) as client:
        await client.counts()


@pytest.mark.parametrize("work", [heartbeat, connect, upload, fetch, ask])
async def test_the_loop_goes_on(work: Callable[[Path], Awaitable[Any]], stalled: StalledFile) -> None:
    task = asyncio.ensure_future(work(stalled.path))
    writer = None
    while writer is None and not stalled.rescued.is_set():
        with contextlib.suppress(OSError):
            writer = stalled.open()  # somebody reads it, and yet this loop goes on
        await asyncio.sleep(0.01)
    try:
        assert not stalled.rescued.is_set()
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if writer is not None:
            os.close(writer)
