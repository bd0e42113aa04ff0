"""The page's text in a real browser, compared with Slurm's queue, the process table and the store.

Each comparison waits until both sides agree, because the page follows the world by a moment. What is never true for long
enough fails, with the differences.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rollyard.client.kubeconfig import load_context
from rollyard.kinds.values.job_state import JobState
from rollyard.page_proxy.main import listen
from tests.support.browser import Tab, chromium
from tests.support.cluster import Cluster
from tests.support.until import until
from tests.support.yard import Yard

UNKNOWN = "–"
SECONDS = 60.0
CLOCK_SECONDS = 3.0
"""Greatest difference of two times that count as equal: Slurm's are whole seconds."""
KEEP_ALIVE_SECONDS = 12.0
"""Longest silence of a live stream, and some more."""
QUEUE = ("JobArrayID", "Comment", "State", "Reason", "EndTime", "NodeList")
PROCESSES = {"RolloutPool": "node-agent", "InferencePool": "inference-server"}
COUNTS = ("Queued", "INIT", "RUN", "EVAL", "Completed", "Truncated", "Failed", "InfraFailed", "Cancelled")
READ = r"""(() => {
  const text = (node) => {
    const copy = node.cloneNode(true);
    for (const time of copy.querySelectorAll('time')) time.textContent = time.dateTime;
    for (const symbol of copy.querySelectorAll('[aria-hidden]')) symbol.remove();
    return copy.textContent.replace(/\u2009/g, '').trim();
  };
  const rows = (table) => {
    const heads = [...table.querySelectorAll('thead th')].map(text);
    const row = (cells) => Object.fromEntries(cells.map((cell, i) => [heads[i], text(cell)]));
    return [...table.querySelectorAll('tbody tr')].map((one) => row([...one.children]));
  };
  const tables = {};
  for (const table of document.querySelectorAll('main table')) (tables[text(table.caption)] ??= []).push(...rows(table));
  return {
    connection: text(document.querySelector('.connection')),
    banner: [...document.querySelectorAll('.banner')].map(text).join(' '),
    problems: [...document.querySelectorAll('main .problem')].map(text),
    facts: Object.fromEntries([...document.querySelectorAll('main .facts > div')].map((pair) => [...pair.children].map(text))),
    tables,
    reading: /Reading [^.]* …/.test(document.querySelector('main').textContent),
  };
})()"""
"""Script that returns all of the page's text that this module compares. A time is read as ISO text."""


@dataclass(frozen=True)
class QueuedJob:
    """A job of ours as squeue shows it."""

    state: str
    reason: str
    end: float | None
    node: str


@dataclass
class World:
    """Jobs, processes and stored counts as they really are."""

    jobs: Mapping[str, QueuedJob]
    agents: Mapping[str, set[str]]
    """Kind of pool -> names of the allocations whose process lives."""
    counts: Mapping[str, int]
    """Word of the page -> number of rollouts in the store."""
    draining: set[str] = field(default_factory=set)


class ShownPage:
    """A tab that stays open while the server and the cluster have faults."""

    def __init__(self, tab: Tab, page: str, yard: Yard, cluster: Cluster) -> None:
        self.tab, self.page, self.yard, self.cluster = tab, page, yard, cluster

    async def read(self, address: str) -> dict[str, Any]:
        """Open a view and return its text, once nothing of it is being read."""
        await self.tab.evaluate(f"location.hash = '{address}'")
        view = address.partition("?")[0].removeprefix("#/")

        async def found() -> Any:
            there = await self.tab.evaluate(f"location.hash.includes('{view}') && !!document.querySelector('main h1')")
            text = await self.tab.evaluate(READ) if there else None
            return text if text is not None and not text["reading"] else None

        return dict(await until(found, SECONDS, seen=lambda: self.tab.faults))

    async def is_true(self) -> None:
        """Wait until all that the page shows agrees with the world, and the page is connected."""
        seen: list[str] = []

        async def agrees() -> bool:
            seen[:] = await self.differences()
            return not seen

        await until(agrees, SECONDS, least=0.3, seen=lambda: "\n".join(seen))

    async def differences(self) -> list[str]:
        world = await self._world()
        overview, allocations = await self.read("#/overview"), await self.read("#/allocations")
        servers = await self.read("#/servers")
        found = [*_connection(overview), *_allocations(allocations, world), *_overview(overview, world)]
        found += _servers(servers, world)
        return found if (await self._world()).jobs == world.jobs else [*found, "the queue has changed meanwhile"]

    async def says_not_connected(self, since: float) -> None:
        """Wait until the page says that the server is away, and since when. `since`: Unix time of the server's end."""

        async def told() -> bool:
            banner = (await self.tab.evaluate(READ))["banner"]
            found = re.search(r"Not connected since (\d\d:\d\d:\d\d): ", banner)
            return found is not None and -KEEP_ALIVE_SECONDS < _later(found[1], since) < CLOCK_SECONDS

        await until(told, SECONDS, seen=lambda: self.tab.evaluate("document.querySelector('.banner')?.textContent"))

    async def says_slurm_is_away(self) -> None:
        """Wait until the page says on each view that Slurm's queue is not known, and since when."""

        async def told() -> bool:
            banner = (await self.tab.evaluate(READ))["banner"]
            said = r"Slurm's queue is (unknown|in doubt) since (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \("
            return re.search(said, banner) is not None

        await until(told, SECONDS, seen=lambda: self.tab.evaluate("document.body.innerText"))

    async def says(self, allocation: str, state: str) -> None:
        """Wait until the page shows this state of an allocation."""

        async def told() -> bool:
            rows = (await self.read("#/allocations"))["tables"].get("Allocations", [])
            return {row["State"] for row in rows if row["Allocation"] == allocation} == {state}

        await until(told, SECONDS, least=0.3, seen=lambda: self.tab.evaluate("document.body.innerText"))

    async def _world(self) -> World:
        jobs = await asyncio.to_thread(_squeue, self.cluster)
        agents = {kind: _names(self.yard, word) for kind, word in PROCESSES.items()}
        return World(jobs, agents, await asyncio.to_thread(_counts, self.yard.data / "rollyard.db"))


def _connection(shown: Mapping[str, Any]) -> list[str]:
    wrong = [] if shown["connection"] == "live" else [f"connection: {shown['connection']}"]
    return [*wrong, *([shown["banner"]] if shown["banner"] else []), *shown["problems"]]


def _allocations(shown: Mapping[str, Any], world: World) -> list[str]:
    """Differences between the table of allocations, squeue and the process table."""
    rows: Sequence[Mapping[str, str]] = shown["tables"].get("Allocations", [])
    live = {row["Job"]: row for row in rows if row["State"] not in ("ended", "failed")}
    queue = {id: job for id, job in world.jobs.items() if not JobState(job.state).ended}
    found = []
    if live.keys() != queue.keys():
        found.append(f"live jobs: shown {sorted(live)}, in the queue {sorted(queue)}")
    processes = set().union(*world.agents.values())
    for row in rows:
        name, job = row["Allocation"], world.jobs.get(row["Job"])
        if row["State"] == "ready" and name not in processes:
            found.append(f"{name} is shown as ready and has no process")
        if job is None:
            continue
        end = None if job.state == "PENDING" else job.end
        shown_end = row["Ends"].removeprefix("before ")
        # one that ended while it waited to run again is shown with its node
        node = row["Node"] if JobState(job.state).ended and not job.node else job.node or UNKNOWN
        if (row["Slurm says"], row["Node"]) != (job.state, node):
            found.append(f"{name}: shown {row['Slurm says']} on {row['Node']}, in the queue {job}")
        if (end is None) != (shown_end == UNKNOWN) or (end is not None and abs(_unix(shown_end) - end) > CLOCK_SECONDS):
            found.append(f"{name}: shown to end at {shown_end}, in the queue {job}")
        if job.state == "PENDING" and not row["Reason"].startswith(job.reason):
            found.append(f"{name}: shown to wait for {row['Reason']!r}, in the queue {job}")
    return found


def _overview(shown: Mapping[str, Any], world: World) -> list[str]:
    found = []
    for word in COUNTS:
        if shown["facts"].get(word) != str(world.counts[word]):
            found.append(f"rollouts {word}: shown {shown['facts'].get(word)}, in the store {world.counts[word]}")
    waiting = {row["Job"]: row["Slurm's reason"] for row in shown["tables"].get("Jobs that wait in Slurm's queue", [])}
    pending = {id: job.reason for id, job in world.jobs.items() if job.state == "PENDING"}
    if waiting.keys() != pending.keys() or any(not waiting[id].startswith(pending[id]) for id in pending):
        found.append(f"pending jobs: shown {waiting}, in the queue {pending}")
    for kind, processes in world.agents.items():
        ready = sum(int(row["Ready"].partition("/")[0]) for row in shown["tables"].get(f"{kind}s", []))
        if ready > len(processes):
            found.append(f"{kind}s: {ready} shown as ready, processes of {sorted(processes)}")
        for row in shown["tables"].get(f"{kind}s", []):
            have, _, want = row["Ready"].partition("/")
            if (row["State"] == "Ready") != (have == want and have != "0"):
                found.append(f"{kind}: shown {row['State']} with {row['Ready']}")
    return found


def _servers(shown: Mapping[str, Any], world: World) -> list[str]:
    ready = {row["Endpoint"] for row in shown["tables"].get("Model servers", []) if row["State"] == "Ready"}
    lacking = ready - world.agents["InferencePool"]
    return [f"model servers shown as Ready without a process: {sorted(lacking)}"] if lacking else []


def _squeue(cluster: Cluster) -> dict[str, QueuedJob]:
    fields = ",".join(f"{name}:~|~" for name in QUEUE)
    lines = cluster.run("env", "TZ=UTC", "SLURM_TIME_FORMAT=standard", "squeue", "-h", "-r", "-t", "all", "-O", fields)
    found = {}
    for line in lines.splitlines():
        id, comment, state, reason, end, node = (part.strip() for part in line.split("~|~")[: len(QUEUE)])
        if comment.startswith("rollyard:") and not comment.startswith("rollyard:another:"):
            at = None if end in ("N/A", "Unknown", "") else datetime.fromisoformat(end).replace(tzinfo=UTC).timestamp()
            found[id] = QueuedJob(state, "" if reason in ("None", "(null)") else reason, at, node)
    return found


def _names(yard: Yard, word: str) -> set[str]:
    """Names of the allocations whose node agent or model server lives."""
    found = set()
    for pid in yard.processes(word, "--allocation"):
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            found.add(Path(words[words.index("--allocation") + 1]).name.partition(".")[2])  # NAMESPACE.NAME
    return found


def _counts(database: Path) -> dict[str, int]:
    found: Counter[str] = Counter()
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as db:
        query = "SELECT status, stage, count(*) FROM rollouts WHERE namespace = 'default' GROUP BY status, stage"
        for status, stage, number in db.execute(query):
            found[stage if status == "Running" else status] += number
    return {word: found[word] for word in COUNTS}


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _later(time_of_day: str, since: float) -> float:
    """Seconds from `since` to a time of day in this machine's zone."""
    at = datetime.combine(datetime.fromtimestamp(since).date(), datetime.strptime(time_of_day, "%H:%M:%S").time())
    return (at.timestamp() - since + 43200) % 86400 - 43200


@contextlib.asynccontextmanager
async def page_tab(yard: Yard) -> AsyncIterator[tuple[Tab, str] | None]:
    """Open the page of a running server in a browser, over a proxy as `rollyard ui` runs it. Yield the tab, and the address
    of the page without a view; None if no browser can be had."""
    announced: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        try:
            browser = await stack.enter_async_context(chromium())
        except pytest.skip.Exception:
            yield None
            return
        await listen(load_context(yard.data / "admin.kubeconfig"), 0, announced.append, stack)
        tab = await browser.tab(announced[0])
        await tab.until("document.querySelector('.connection')?.textContent.includes('live')")
        yield tab, announced[0].partition("?")[0]


@contextlib.asynccontextmanager
async def shown_page(yard: Yard, cluster: Cluster) -> AsyncIterator[ShownPage | None]:
    """Open the page, to compare it with the cluster. Yield None if no browser can be had."""
    async with page_tab(yard) as opened:
        yield ShownPage(*opened, yard, cluster) if opened is not None else None
