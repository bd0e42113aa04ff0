"""A real browser without a window: Chromium's headless shell of Debian, driven over its DevTools protocol through pipes.

Run as a program, it fetches Chromium and axe-core into the cache (100 MB), if they are not there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.debian_packages import LIBRARY_FOLDERS, build_lock, debian_program
from tests.support.until import until

PACKAGE = "chromium-headless-shell"
AXE_VERSION, AXE_SHA256 = "4.14.1", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
CACHE = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
SECONDS = 60.0
FLAGS = (
    "--remote-debugging-pipe", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--mute-audio", "--force-color-profile=srgb",
)  # fmt: skip
"""`--no-sandbox`: Chromium's own sandbox refuses root, and shows only pages of this repository."""


class Tab:
    """A page, and all that went wrong in it."""

    def __init__(self, browser: Browser, session: str, cookies: str) -> None:
        self._browser, self._session = browser, session
        self.cookies = cookies
        """Id of the set of cookies."""
        self.faults: list[str] = []
        """Errors and warnings of the console, exceptions of scripts, and what the content security policy blocked."""
        self.requested: list[str] = []
        """URLs of all requests, also of those that were blocked."""
        self.dialogs: list[str] = []
        self._film: list[bytes] = []
        self._traffic = 0.0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        return await self._browser.call(method, self._session, **parameters)

    async def look(self, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Set the size of the window, and the colours that its user prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def go(self, url: str) -> None:
        """Open a URL, as a person who types it. Fails if nothing answers there."""
        answer = await self.call("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression; of a promise, its result. Fails if the script raises."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        failed = answer.get("exceptionDetails")
        assert failed is None, (failed.get("exception") or {}).get("description") or failed["text"]
        return answer["result"].get("value")

    async def until(self, script: str, seconds: float = SECONDS) -> Any:
        """Return the first true value of an expression. The document may be replaced meanwhile."""

        async def value() -> Any:
            with contextlib.suppress(ContextGone):
                return await self.evaluate(script)

        return await until(value, seconds, seen=lambda: f"{script}; faults: {self.faults}")

    async def settle(self, quiet_seconds: float = 0.5) -> None:
        """Wait until nothing was requested or received for a while. Silent streams may stay open."""
        loop = asyncio.get_running_loop()
        await until(lambda: loop.time() - self._traffic > quiet_seconds, SECONDS, every=0.05)

    async def click(self, selector: str) -> None:
        """Click the middle of the first such element with the mouse, once it is there."""
        found = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"!!{found}")
        corner = f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({found}.getBoundingClientRect())"
        await self.evaluate(f"{found}.scrollIntoView({{block: 'center'}})")
        x, y = await self.evaluate(corner)
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def picture(self, *, whole: bool = True) -> bytes:
        """Return a PNG of the window, or of the whole page."""
        return base64.b64decode((await self.call("Page.captureScreenshot", captureBeyondViewport=whole))["data"])

    @contextlib.asynccontextmanager
    async def filmed(self) -> AsyncIterator[list[bytes]]:
        """Collect the frames of the window within the block, as PNGs."""
        film = self._film = []
        await self.call("Page.startScreencast", format="png")
        yield film
        await self.call("Page.stopScreencast")

    async def axe(self) -> list[str]:
        """Return what axe finds of serious and critical faults of accessibility, one line each."""
        if not await self.evaluate("'axe' in window"):
            await self.evaluate(await asyncio.to_thread(axe_script))
        found = await self.evaluate("axe.run({preload: false}).then(result => result.violations)")
        return [
            f"{fault['impact']} {fault['id']}: {fault['help']}: {node['html'][:200]} {node['failureSummary']}"
            for fault in found
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]

    def note(self, method: str, event: dict[str, Any]) -> None:
        if method.startswith(("Network.", "Page.")):
            self._traffic = asyncio.get_running_loop().time()
        match method:
            case "Runtime.consoleAPICalled" if event["type"] in ("error", "warning", "assert"):
                words = (str(a.get("value", a.get("description", ""))) for a in event["args"])
                self.faults.append(f"console.{event['type']}: {' '.join(words)}")
            case "Runtime.exceptionThrown":
                details = event["exceptionDetails"]
                described = details.get("exception", {}).get("description", details["text"])
                self.faults.append(f"exception: {described} ({details.get('url', '')})")
            case "Log.entryAdded" if event["entry"]["level"] in ("error", "warning"):
                entry = event["entry"]
                self.faults.append(f"{entry['source']} {entry['level']}: {entry['text']} ({entry.get('url', '')})")
            case "Network.requestWillBeSent":
                self.requested.append(event["request"]["url"])
            case "Page.screencastFrame":
                self._film.append(base64.b64decode(event["data"]))
                self._browser.post("Page.screencastFrameAck", self._session, sessionId=event["sessionId"])
            case "Page.javascriptDialogOpening":
                self.dialogs.append(event["message"])
                self._browser.post("Page.handleJavaScriptDialog", self._session, accept=True)


class ContextGone(Exception):
    """The document was replaced while a script ran in it."""


class Browser:
    """A running Chromium."""

    def __init__(self, reader: asyncio.StreamReader, writer: Any) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}
        self._awaited: dict[str, asyncio.Future[dict[str, Any]]] = {}

    def event(self, method: str) -> asyncio.Future[dict[str, Any]]:
        """Wait for the next event of the whole browser, and return its parameters."""
        return self._awaited.setdefault(method, asyncio.get_running_loop().create_future())

    async def tab(self, url: str = "about:blank", beside: Tab | None = None, **look: Any) -> Tab:
        """Open a tab with cookies of its own, or with those of another tab. `look`: as of `Tab.look`."""
        context = beside.cookies if beside else (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"], context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await tab.call(f"{domain}.enable")
        await tab.look(**look)
        if url != "about:blank":
            await tab.go(url)
        return tab

    def post(self, method: str, session: str | None = None, **parameters: Any) -> asyncio.Future[dict[str, Any]]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        self._writer.write(json.dumps(message).encode() + b"\0")
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        return answer

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        async with asyncio.timeout(SECONDS):
            answer: dict[str, Any] = await self.post(method, session, **parameters)
        if (error := answer.get("error")) is not None:
            gone = "context" in error["message"] or "navigated" in error["message"]
            raise ContextGone(error["message"]) if gone else AssertionError(f"{method}: {error['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def read(self) -> None:
        """Pass on answers and events until Chromium ends."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
                if (number := message.get("id")) is not None:
                    answer = self._answers.pop(number)
                    if not answer.done():
                        answer.set_result(message)
                elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                    tab.note(message["method"], message["params"])
                elif (awaited := self._awaited.pop(message["method"], None)) is not None:
                    awaited.set_result(message["params"])
        for answer in self._answers.values():
            answer.cancel()


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run a Chromium, which ends with the block. It also ends with this process, because its pipes close.

    Skips the test if this machine has no Chromium and cannot fetch it.
    """
    program, environment = await asyncio.to_thread(_program)
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="rollyard-browser-") as profile, contextlib.ExitStack() as files:
        (commands, to_browser), (from_browser, events) = os.pipe(), os.pipe()
        inner = [fcntl.fcntl(number, fcntl.F_DUPFD, 10) for number in (commands, events)]
        command = ["bash", "-c", f'exec "$@" 3<&{inner[0]} 4>&{inner[1]}', "bash", str(program), *FLAGS]
        with open(Path(profile, "log"), "wb") as log:
            process = subprocess.Popen(
                [*command, f"--user-data-dir={profile}/user"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=inner, cwd=profile,
                env={**os.environ, **environment, "HOME": profile}, start_new_session=True,
            )  # fmt: skip
        for number in (commands, events, *inner):
            os.close(number)
        reader = asyncio.StreamReader(limit=256 << 20)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), files.enter_context(open(from_browser, "rb", 0))
        )
        writer, _ = await loop.connect_write_pipe(asyncio.Protocol, files.enter_context(open(to_browser, "wb", 0)))
        browser = Browser(reader, writer)
        reading = asyncio.create_task(browser.read())
        try:
            yield browser
        finally:
            browser.post("Browser.close")
            await asyncio.to_thread(_end, process)
            await reading
            transport.close()
            writer.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _program() -> tuple[Path, dict[str, str]]:
    """Return Chromium's headless shell and the variables with which it finds its libraries."""
    if platform.machine() != "x86_64" or (shutil.which("apt-get") is None and not shutil.which(PACKAGE)):
        pytest.skip("needs Chromium's headless shell, which this machine cannot fetch by apt-get")
    if (installed := Path("/usr/lib/chromium", PACKAGE)).exists():
        return installed, {}
    try:
        folder = debian_program(PACKAGE, "usr").parent
    except AssertionError as error:
        pytest.skip(f"Chromium's headless shell cannot be fetched: {error}")
    libraries = [path for pattern in LIBRARY_FOLDERS for path in folder.glob(pattern)]
    search = ":".join(str(path) for one in libraries for path in (one, one / "pulseaudio"))
    return folder / "usr/lib/chromium" / PACKAGE, {"LD_LIBRARY_PATH": search}


def axe_script() -> str:
    """Return axe-core, which is fetched by npm at the first call on a machine. Skips the test if that cannot be done."""
    script = CACHE / "axe-core" / AXE_VERSION / "axe.min.js"
    with build_lock(script.parent):
        if not script.exists():
            _fetch_axe(script)
    text = script.read_bytes()
    assert hashlib.sha256(text).hexdigest() == AXE_SHA256, f"{script} is not the one that these tests are made for"
    return text.decode()


def _fetch_axe(script: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("needs axe-core, and this machine has no npm to fetch it")
    with tempfile.TemporaryDirectory() as folder:
        fetch = ["npm", "pack", "--silent", f"axe-core@{AXE_VERSION}"]
        done = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"axe-core cannot be fetched: {done.stderr.strip()[-300:]}")
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            found = files.extractfile("package/axe.min.js")
            assert found is not None
            script.parent.mkdir(parents=True, exist_ok=True)
            unfinished = script.with_suffix(".new")
            unfinished.write_bytes(found.read())
            unfinished.rename(script)


if __name__ == "__main__":
    try:
        _program()
        axe_script()
    except pytest.skip.Exception as missing:
        raise SystemExit(str(missing)) from None
