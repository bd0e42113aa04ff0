"""One server, one recorded training, one proxy and one browser for all tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from rollyard.client.kubeconfig import Context, load_context
from rollyard.page_proxy.main import listen
from rollyard.page_proxy.recording import RECORDING, read, restore
from tests.support.browser import Browser, Tab, chromium
from tests.support.manual_clock import ManualClock
from tests.support.yard import Yard, end

ANSWER_SECONDS = 30.0
KEPT = re.compile(r"tasks-g[0-3]\.[0-9]")
"""Rollouts of the recording that suffice: a long table only takes time."""
READY = "document.querySelector('[role=status]')?.textContent.includes('live')"


@dataclass
class RunningProxy:
    """A proxy in this process, and what it told the terminal."""

    port: int
    announced: list[str]
    clock: ManualClock = field(default_factory=ManualClock)
    cookie: str = ""
    """`NAME=VALUE` of a browser that is signed in."""

    @property
    def address(self) -> str:
        """URL of the newest address, with its code."""
        return self.announced[-1]

    @property
    def code(self) -> str:
        return self.address.partition("code=")[2]

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def page(self) -> str:
        return f"http://{self.host}/ui/"

    async def send(self, request: bytes) -> bytes:
        """Send these bytes, and return all that comes until the proxy closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            async with asyncio.timeout(ANSWER_SECONDS):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def get(self, path: str, *headers: str) -> bytes:
        """Ask as a program that sends no more than it must. `headers`: whole lines."""
        lines = [f"GET {path} HTTP/1.1", f"Host: {self.host}", "Connection: close", *headers]
        return await self.send("\r\n".join([*lines, "", ""]).encode())

    async def sign_in(self) -> None:
        answer = await self.get(f"/ui/?code={self.code}", "Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate")
        (line,) = (line for line in answer.decode().split("\r\n") if line.startswith("Set-Cookie: "))
        self.cookie = line.removeprefix("Set-Cookie: ").partition(";")[0]

    async def read(self, path: str) -> bytes:
        """Ask as the browser that is signed in."""
        return await self.get(path, f"Cookie: {self.cookie}", "Sec-Fetch-Site: same-origin")


async def start(context: Context, stack: AsyncExitStack) -> RunningProxy:
    """Start a proxy and sign a browser in."""
    announced: list[str] = []
    clock = ManualClock()
    await listen(context, 0, announced.append, stack, clock.monotonic)
    proxy = RunningProxy(urlsplit(announced[0]).port or 0, announced, clock)
    await proxy.sign_in()
    return proxy


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    made = Yard(tmp_path_factory.mktemp("yard"))
    made.start()
    yield made
    await end(made)


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def proxy(yard: Yard) -> AsyncIterator[RunningProxy]:
    async with AsyncExitStack() as stack:
        yield await start(load_context(yard.data / "admin.kubeconfig"), stack)


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all; each tab has cookies of its own."""
    async with chromium() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def recorded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    """A server with a part of the recorded training."""
    made = Yard(tmp_path_factory.mktemp("yard"))
    lines, began = read(RECORDING, made.folder / "model")
    kept = [line for line in lines if line.table != "rollout" or KEPT.fullmatch(line.record["id"])]
    await restore(kept, began, made.data)
    made.start()
    yield made
    await end(made)


@pytest_asyncio.fixture(loop_scope="package")
async def opened(recorded: Yard, browser: Browser) -> AsyncIterator[tuple[Tab, str]]:
    """A tab on the overview, and the page's address."""
    async with AsyncExitStack() as stack:
        proxy = await start(load_context(recorded.data / "admin.kubeconfig"), stack)
        await proxy.get("/ui/")
        tab = await browser.tab(proxy.address)
        await tab.until(READY)
        yield tab, proxy.page
