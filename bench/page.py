"""Speed of the page, in a real Chromium: how soon a view is painted, its longest task, the time of searches, memory, and
what an open page costs the server.

The server is that of `bench.page_site`, in a process of its own; so is `rollyard ui`.

    python -m bench.page [--rollouts 100000] [--allocations 200] [--minutes 30]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.control_plane import cpu_seconds
from bench.page_site import BATCH, EVALUATION, GROUP, LONG, LONG_TURNS, OUTPUT
from bench.page_tasks import Tasks, traced
from tests.support.browser import Browser, Tab, chromium
from tests.support.token_canvas import NUMBERS, ROW, gap

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("views", "scroll", "shares", "follow")
CHANGES = 100
"""Changes of objects a second."""
PROBE = """
window.probe = {long: [], painted: 0, frames: []};
new PerformanceObserver(list => { for (const e of list.getEntries()) probe.long.push([e.startTime, e.duration]); })
  .observe({type: 'longtask', buffered: true});
window.probeFor = (selector) => {
  probe.painted = 0;
  const look = () => {
    if (!document.querySelector(selector)) requestAnimationFrame(look);
    else requestAnimationFrame(() => setTimeout(() => { probe.painted ||= performance.now(); }));
  };
  look();
};
window.probeAnswer = (path) => Math.max(0, ...performance.getEntriesByType('resource')
  .filter(e => e.name.includes(path) && e.responseEnd <= probe.painted).map(e => e.responseEnd));
"""


@dataclass(frozen=True)
class View:
    name: str
    address: str
    there: str
    """Selector of an element that shows that the view has its content."""
    answer: str
    """Part of the URL of the request whose answer the view shows."""


FOLLOWED = ("#/overview", "#/allocations", "#/rollouts")
"""Views that stay open while objects change."""
WAIT_SECONDS = 300.0
"""Longest wait for a view on a machine that is very busy."""
SHARE_SECONDS, SHARE_ROUNDS = 20.0, 3
FRAME_MS = 1000 / 60
SCROLL_SPEEDS, SCROLL_SECONDS = (2_000, 10_000, 50_000), 5.0
"""Pixels a second: a reader, a searcher, and a wheel without a stop. Longest time of each, if the text is long enough."""
SAMPLE_SECONDS, TRACE_SECONDS = 60.0, 10.0
TOKENS = View(
    "tokens of 131,072", f"#/rollouts/{LONG}?view=tokens", ".tokens canvas[style]", f"/v1/rollouts/{LONG}/tokens"
)
CONVERSATION = View(
    "conversation of 131,072 tokens", f"#/rollouts/{LONG}", ".turns .turn:nth-child(5)", f"/v1/rollouts/{LONG}?"
)
SCROLLED = (
    ("plain text", TOKENS, ".tokens"),
    ("tokens", TOKENS, ".tokens"),
    ("tokens by probability", replace(TOKENS, address=f"{TOKENS.address}&colour=logprob"), ".tokens"),
    ("conversation", CONVERSATION, "html"),
)
"""Names, views, and the selectors of what scrolls in them."""
MIDDLE = """(({x, y, width, height}) => [x + width / 2, y + Math.min(height, innerHeight) / 2])
  (document.querySelector('%s').getBoundingClientRect())"""
WAY = "(({scrollHeight, clientHeight}) => scrollHeight - clientHeight)(document.querySelector('%s'))"
"""Pixels that an element can be scrolled."""
PLAIN = """{
  const box = document.querySelector('.tokens'), plain = box.cloneNode(), text = document.createElement('pre');
  text.style.font = 'inherit';
  text.style.margin = 0;
  const line = 'words of a text that the browser scrolls without a script '.repeat(3).slice(0, 150);
  text.textContent = (line + '\\n').repeat(box.scrollHeight / 22);
  plain.append(text);
  box.replaceWith(plain);
}"""
"""Put a plain text into the place of the tokens, in as many rows."""
VIEWS = [
    View("list of rollouts", "#/rollouts", "main tbody tr:nth-child(50)", "/v1/rollouts?"),
    View("overview", "#/overview", "main section tbody tr", "/v1/changes"),
    View("200 allocations on one axis", "#/allocations", ".timeline svg a", "/v1/changes"),
    View("pool", "#/pools/RolloutPool/p0", "main tbody tr", "/v1/changes"),
    View("batch of 3,000 groups, 500 steps", f"#/batches/{BATCH}", ".charts svg[role=img]", "/v1/history/batches"),
    View("evaluation of 5,000 tasks", f"#/evaluations/{EVALUATION}", "main tbody tr:nth-child(50)", "/tasks"),
    View("group of 64", f"#/groups/{GROUP}", ".side .card:nth-child(64) pre", f"/v1/rollouts/{GROUP}"),
    CONVERSATION,
    TOKENS,
    View("tool output of 4 MB", f"#/rollouts/{OUTPUT}", ".turns .turn pre.output", f"/v1/rollouts/{OUTPUT}?"),
]  # fmt: skip


async def open_view(tab: Tab, page: str, view: View) -> tuple[float, float, int]:
    """Load the page at a view. Return ms from the navigation to the paint of its content, and from the end of the server's
    answer, and the number of elements."""
    await tab.go("about:blank")
    await tab.go(page + view.address)
    await tab.evaluate(f"probeFor({json.dumps(view.there)})")
    await tab.until("probe.painted", WAIT_SECONDS)
    await tab.settle(1.0)
    painted = await tab.evaluate("probe.painted")
    answered = await tab.evaluate(f"probeAnswer({json.dumps(view.answer)})")
    return painted, painted - answered, await tab.evaluate("document.querySelectorAll('*').length")


@contextmanager
def running(arguments: Sequence[str], home: str, **more: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a module; yield it with the first line that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "HOME": home}, **more,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.terminate()
        process.wait(30)


class Bench:
    def __init__(
        self, browser: Browser, site: subprocess.Popen[str], proxy: subprocess.Popen[str], address: str
    ) -> None:
        self.browser, self.site, self.proxy, self.address = browser, site, proxy, address
        self.page = address.partition("?")[0]
        self._first: Tab | None = None

    async def tab(self) -> Tab:
        """Open the page. The first tab signs the browser in."""
        tab = await self.browser.tab(beside=self._first)
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=PROBE)
        await tab.go(self.page if self._first else self.address)
        self._first = self._first or tab
        await tab.until("document.querySelector('[role=status]')?.textContent.includes('live')", WAIT_SECONDS)
        return tab

    def changes(self, rate: int) -> None:
        """Let this many objects change each second."""
        assert self.site.stdin is not None
        print(rate, file=self.site.stdin, flush=True)

    async def views(self, names: str) -> None:
        tab = await self.tab()
        heads = f"{'from navigation':>16}{'from answer':>12}{'longest task: CPU':>18}{'wall':>6}{'elements':>9}"
        print(f"{'painted, ms':34}{heads}")
        for view in VIEWS:
            if names in view.name:
                async with traced(self.browser) as tasks:
                    whole, after, elements = await open_view(tab, self.page, view)
                longest = f"{tasks.longest_cpu:18.0f}{tasks.longest_wall:6.0f}"
                print(f"{view.name:34}{whole:16.0f}{after:12.0f}{longest}{elements:9}", flush=True)

    async def scroll(self) -> None:
        """Scroll by the mouse wheel through a plain text, tokens in as many rows, and a conversation; print the frames."""
        tab = await self.tab()
        heads = "".join(
            f"{head:>11}" for head in ("frames", "late", "dropped", "not whole", "long", "longest", "CPU", "ratio")
        )
        print(f"{'scrolled, px/s':34}{heads}; long: tasks of more than {FRAME_MS:.0f} ms of CPU; "
              "longest task, and CPU of a frame, in ms of CPU; ratio: to that of plain text")  # fmt: skip
        for speed in SCROLL_SPEEDS:
            plain = 0.0
            for name, view, scrolls in SCROLLED:
                await open_view(tab, self.page, view)
                if view is CONVERSATION:
                    await tab.until(f"document.querySelector('#turn-{LONG_TURNS}') !== null")
                if name == "plain text":
                    await tab.evaluate(PLAIN)
                    await tab.settle(1.0)
                tasks, not_whole = await self._scrolled(tab, speed, scrolls)
                frame = sum(tasks.cpu) / tasks.drawn
                plain = plain or frame
                long = sum(ms > FRAME_MS for ms in tasks.cpu)
                counts = f"{tasks.drawn:11}{tasks.late:11}{tasks.dropped:11}{not_whole:>11}{long:11}"
                print(
                    f"{f'{name} at {speed:,}':34}{counts}{tasks.longest_cpu:11.0f}{frame:11.1f}{frame / plain:11.2f}",
                    flush=True,
                )

    async def _scrolled(self, tab: Tab, speed: int, scrolls: str) -> tuple[Tasks, str]:
        """Scroll down, and then up while the window is filmed. Return the tasks, and how many frames of the film lack a row."""
        x, y = await tab.evaluate(MIDDLE % scrolls)
        way = min(round(speed * SCROLL_SECONDS), await tab.evaluate(WAY % scrolls))
        wheel = {"x": x, "y": y, "speed": speed, "gestureSourceType": "mouse"}
        async with traced(self.browser) as tasks:
            await tab.call("Input.synthesizeScrollGesture", yDistance=-way, **wheel)
        if scrolls != ".tokens":
            return tasks, ""
        numbers = await tab.evaluate(NUMBERS)
        async with tab.filmed() as film:
            await tab.call("Input.synthesizeScrollGesture", yDistance=way, **wheel)
        return tasks, f"{sum(gap(frame, *numbers) > ROW for frame in film)} of {len(film)}"

    async def shares(self) -> None:
        """Print what 0, 1 and 3 open pages cost the server and the proxy, in turn, while objects change."""
        self.changes(CHANGES)
        found: dict[int, list[tuple[float, float, float]]] = {0: [], 1: [], 3: []}
        asking = await self.tab()
        await asking.go(self.page + "style.css")
        tabs = [await self.tab() for _ in FOLLOWED]
        for _ in range(SHARE_ROUNDS):
            for open_pages in found:
                for number, tab in enumerate(tabs):
                    shown = number < open_pages
                    await tab.go("about:blank")
                    if shown:
                        await tab.go(self.page + FOLLOWED[number])
                        await tab.until(
                            "document.querySelector('[role=status]')?.textContent.includes('live')", WAIT_SECONDS
                        )
                await asyncio.sleep(2)
                before, began = (*self._cpu(), await asking.evaluate(VERSION)), time.perf_counter()
                await asyncio.sleep(SHARE_SECONDS)
                spent, seconds = (*self._cpu(), await asking.evaluate(VERSION)), time.perf_counter() - began
                a, b, c = ((now - then) / seconds for now, then in zip(spent, before, strict=True))
                found[open_pages].append((a, b, c))
        alone = statistics.median(server for server, _, _ in found[0])
        for open_pages, some in found.items():
            server, proxy, changes = (statistics.median(values) for values in zip(*some, strict=True))
            print(f"{open_pages} open pages at {changes:.0f} changes a second: server {server:.1%} of a core, "
                  f"{server - alone:+.1%} for the pages; `rollyard ui` {proxy:.1%}", flush=True)  # fmt: skip

    def _cpu(self) -> tuple[float, float]:
        return cpu_seconds(self.site.pid), cpu_seconds(self.proxy.pid)

    async def follow(self, minutes: float) -> None:
        """Keep views open while objects change; print memory after garbage collections, and the longest task."""
        self.changes(CHANGES)
        tabs = []
        for address in FOLLOWED:
            tabs.append(tab := await self.tab())
            await tab.go(self.page + address)
        end = time.monotonic() + 60 * minutes
        began = time.monotonic()
        made = await tabs[0].evaluate(VERSION)
        print(
            f"{'minute':>6} {'changes a second':>17} {'longest task: CPU, wall':>24}  "
            f"MB of heap (elements) of {', '.join(FOLLOWED)}"
        )
        while True:
            async with traced(self.browser) as tasks:
                await asyncio.sleep(TRACE_SECONDS)
            heaps = [f"{await heap_mb(tab):.1f} ({await tab.evaluate(ELEMENTS)})" for tab in tabs]
            longest = f"{tasks.longest_cpu:16.0f} {tasks.longest_wall:7.0f}"
            rate = (await tabs[0].evaluate(VERSION) - made) / (time.monotonic() - began)
            print(f"{(time.monotonic() - began) / 60:6.1f} {rate:17.0f} {longest}  {', '.join(heaps)}", flush=True)
            if time.monotonic() > end:
                break
            await asyncio.sleep(min(SAMPLE_SECONDS, max(0.0, end - time.monotonic())))
        for tab, address in zip(tabs, FOLLOWED, strict=True):
            over = await tab.evaluate("probe.long.filter(l => l[1] > 100).length")
            print(
                f"{address}: tasks of more than 100 ms (wall): {over} of {await tab.evaluate('probe.long.length')} long ones"
            )


VERSION = """fetch('/apis/rollyard.dev/v1alpha1/rolloutpools').then(answer => answer.json())
  .then(list => Number(list.metadata.resourceVersion))"""
"""Number of changes of objects so far."""
ELEMENTS = "document.querySelectorAll('*').length"


async def heap_mb(tab: Tab) -> float:
    """Memory of a page's objects after a garbage collection."""
    await tab.call("HeapProfiler.collectGarbage")
    return float((await tab.call("Runtime.getHeapUsage"))["usedSize"]) / 1e6


async def measure(given: argparse.Namespace, folder: str) -> None:
    data = given.data or Path(folder, "data")
    site_arguments = [
        "bench.page_site",
        str(data),
        "--rollouts",
        str(given.rollouts),
        "--allocations",
        str(given.allocations),
    ]
    with running(site_arguments, folder, stderr=None) as (site, line):
        kubeconfig = json.loads(line)["kubeconfig"]
        ui = ["rollyard.cli.main", "ui", "--kubeconfig", kubeconfig, "--no-browser"]
        with running(ui, folder) as (proxy, address):
            async with chromium() as browser:
                bench = Bench(browser, site, proxy, address.split()[-1])
                if "views" in given.parts:
                    await bench.views(given.view)
                if "scroll" in given.parts:
                    await bench.scroll()
                if "shares" in given.parts:
                    await bench.shares()
                if "follow" in given.parts:
                    await bench.follow(given.minutes)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, default=100_000)
    options.add_argument("--allocations", type=int, default=200)
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options.add_argument("--view", default="", help="only views whose name contains this")
    options.add_argument("--data", type=Path, help="a folder of an earlier run")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as folder:
        asyncio.run(measure(given, folder))
    print(f"load average of the last minute: {os.getloadavg()[0]:.0f}, with these processes")


if __name__ == "__main__":
    main()
