"""Tasks of a page's main thread, as Chromium traces them: with their CPU time, because on a busy machine a task also waits for
a core."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.browser import Browser

FRAMES = ("devtools.timeline.frame", "disabled-by-default-devtools.timeline.frame")


@dataclass
class Tasks:
    """Times in ms."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    drawn: int = 0
    """Frames of all pages."""
    late: int = 0
    """Frames that the browser scrolled by itself, because the page's part was not ready."""
    dropped: int = 0
    """Moments of the screen without a new frame."""

    @property
    def longest_wall(self) -> float:
        return max(self.wall, default=0.0)

    @property
    def longest_cpu(self) -> float:
        return max(self.cpu, default=0.0)


@asynccontextmanager
async def traced(browser: Browser) -> AsyncIterator[Tasks]:
    """Trace the main threads of all pages within the block; the result is filled at its end."""
    found = Tasks()
    config = {"includedCategories": ["toplevel", "__metadata", *FRAMES], "excludedCategories": ["*"]}
    await browser.call("Tracing.start", transferMode="ReturnAsStream", traceConfig=config)
    try:
        yield found
    finally:
        complete = browser.event("Tracing.tracingComplete")
        await browser.call("Tracing.end")
        _add(found, json.loads(await _read(browser, (await complete)["stream"]))["traceEvents"])


async def _read(browser: Browser, handle: str) -> str:
    text = ""
    while True:
        piece = await browser.call("IO.read", handle=handle, size=1 << 20)
        text += str(piece["data"])
        if piece["eof"]:
            await browser.call("IO.close", handle=handle)
            return text


def _add(found: Tasks, events: list[dict[str, Any]]) -> None:
    mains = {
        (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"
    }
    for event in events:
        if event["name"] == "ThreadControllerImpl::RunTask" and (event["pid"], event["tid"]) in mains:
            found.wall.append(event.get("dur", 0) / 1000)
            found.cpu.append(event.get("tdur", 0) / 1000)
        found.drawn += event["name"] == "DrawFrame"
        if event["name"] == "DroppedFrame":
            partial = event["args"]["hasPartialUpdate"]
            found.late += partial
            found.dropped += not partial
