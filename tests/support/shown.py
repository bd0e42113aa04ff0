"""The page's text in a real browser, compared with Slurm's queue, accounting, the process table and the store.

Each comparison waits until both sides agree, because the page follows the world by a moment. What is never true for long
enough fails, with the differences.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from rollyard.client.kubeconfig import load_context
from rollyard.kinds.values.job_state import JobState
from rollyard.page_proxy.main import listen
from tests.support.browser import Tab, chromium
from tests.support.until import until
from tests.support.world import COUNTS, Account, World, is_live, read_world
from tests.support.yard import Yard

UNKNOWN = "–"
SECONDS = 60.0
CLOCK_SECONDS = 3.0
"""Greatest difference of two times that count as equal: Slurm's are whole seconds."""
KEEP_ALIVE_SECONDS = 12.0
"""Longest silence of a live stream, and some more."""
AWAY_SECONDS = 600.0
"""Longest time for which a fault of Slurm lasts in a test."""
ZONE, ZONE_TIME = "Asia/Kolkata", timezone(timedelta(hours=5.5))
"""The browser's zone, which is neither Slurm's nor this machine's."""
ENDED_BY_ITSELF = ("COMPLETED", "FAILED")
SHORT = {"RolloutPool": "rp", "InferencePool": "ip"}
POOLS = (("RolloutPool", "demo"), ("InferencePool", "policy"))
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
    unknown: [...document.querySelectorAll('main [role=status]')].map(text).filter((said) => /not known/i.test(said)),
    reading: /Reading [^.]* …/.test(document.querySelector('main').textContent),
  };
})()"""
"""Script that returns all of the page's text that this module compares. A time is read as ISO text."""


class ShownPage:
    """A tab that stays open while processes are killed and the cluster has faults."""

    def __init__(self, tab: Tab, page: str, yard: Yard) -> None:
        self.tab, self.page, self.yard = tab, page, yard

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
        world = await read_world(self.yard)
        overview, allocations = await self.read("#/overview"), await self.read("#/allocations")
        servers = await self.read("#/servers")
        found = [*_connection(overview), *_allocations(allocations, world), *_overview(overview, world)]
        found += [*_servers(servers, world), *_accounts(allocations, world)]
        if found:  # it is compared again anyway, and each view takes time
            return found
        for kind, name in POOLS:
            found += _pool(await self.read(f"#/pools/{kind}/{name}"), allocations, world, kind, name)
        if world.rollout is not None:
            found += _rollout(await self.read(f"#/rollouts/{world.rollout['id']}?view=history"), world.rollout)
        return (
            found if (await read_world(self.yard)).jobs == world.jobs else [*found, "the queue has changed meanwhile"]
        )

    async def says_not_connected(self, since: float) -> None:
        """Wait until the page says that the server is away, and since when; also the views that it opens only now.

        `since`: Unix time of the server's end.
        """

        async def told() -> bool:
            banner = (await self.tab.evaluate(READ))["banner"]
            found = re.search(r"Not connected since (?:\d{4}-\d\d-\d\d )?(\d\d:\d\d:\d\d): ", banner)
            return found is not None and -KEEP_ALIVE_SECONDS < _later(found[1], since) < CLOCK_SECONDS

        await until(told, SECONDS, seen=lambda: self.tab.evaluate("document.querySelector('.banner')?.textContent"))
        views = {
            "#/rollouts/never-read": {"rollout"},
            "#/allocations/never-read": {"ended allocations"},
            "#/pools/RolloutPool/demo": {"load", "RolloutPool demo"},  # the pool itself if the page never heard of it
        }
        for address, unknown in views.items():

            async def not_known(address: str = address, unknown: set[str] = unknown) -> bool:
                shown = await self.read(address)
                said = {f"Not known: {what}." for what in unknown}
                return not said.isdisjoint(shown["unknown"]) and "Not connected since" in shown["banner"]

            await until(not_known, SECONDS, seen=lambda: self.tab.evaluate("document.body.innerText"))

    async def says_slurm_is_away(self) -> None:
        """Wait until the page says on each view that Slurm's queue is not known, and since when."""

        async def told() -> bool:
            banner = (await self.tab.evaluate(READ))["banner"]
            found = re.search(
                r"Slurm's queue is (?:unknown|in doubt) since (?:\d{4}-\d\d-\d\d )?(\d\d:\d\d:\d\d) \(", banner
            )
            now = datetime.now(ZONE_TIME).timestamp()
            return found is not None and -AWAY_SECONDS < _later(found[1], now) < CLOCK_SECONDS

        await until(told, SECONDS, seen=lambda: self.tab.evaluate("document.body.innerText"))

    async def says_nothing_is_left(self) -> None:
        """Wait until the page shows that there is no pool."""
        await self.read("#/overview")
        await self.tab.until("document.querySelector('main .empty')?.textContent.includes('has no pool yet')")

    async def says(self, allocation: str, state: str) -> None:
        """Wait until the page shows this state of an allocation."""

        async def told() -> bool:
            rows = (await self.read("#/allocations"))["tables"].get("Allocations", [])
            return {row["State"] for row in rows if row["Allocation"] == allocation} == {state}

        await until(told, SECONDS, least=0.3, seen=lambda: self.tab.evaluate("document.body.innerText"))


def _connection(shown: Mapping[str, Any]) -> list[str]:
    wrong = [] if shown["connection"] == "live" else [f"connection: {shown['connection']}"]
    return [*wrong, *([shown["banner"]] if shown["banner"] else []), *shown["problems"]]


def _allocations(shown: Mapping[str, Any], world: World) -> list[str]:
    """Differences between the table of allocations, squeue and the process table."""
    rows: Sequence[Mapping[str, str]] = shown["tables"].get("Allocations", [])
    live = {row["Job"]: row for row in rows if row["State"] not in ("ended", "failed")}
    queue = {id: job for id, job in world.jobs.items() if is_live(job)}
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


def _accounts(shown: Mapping[str, Any], world: World) -> list[str]:
    """Differences between the ended allocations and accounting, which names each end in its own words."""
    found = []
    for row in shown["tables"].get("Allocations", []) if world.accounts is not None else []:
        has_end = row["State"] in ("ended", "failed") and row["Slurm says"] != "no longer knows it"
        runs = (world.accounts or {}).get(row["Job"], [])
        if has_end and row["Job"] != UNKNOWN and not any(_is_run(row, run) for run in runs):
            found.append(f"{row['Allocation']}: shown {row}, in accounting {runs}")
    return found


def _is_run(row: Mapping[str, str], run: Account) -> bool:
    """Return whether an ended allocation is shown as accounting has this run."""
    code = re.search(r" \(exit code (\d+)\)$", row["Reason"])
    # accounting has 0 for a job that Slurm itself ended by a signal
    same_code = run.exit_code == (int(code[1]) if code else 0) or run.state not in ENDED_BY_ITSELF
    # a run that was ended while it waited to run again has no entry of its own, and ended later than the one before
    waited = run.state == "REQUEUED" and row["Reason"].startswith("requeued")
    later = _unix(row["Ends"].removeprefix("before ")) - run.end if run.end is not None else -math.inf
    same_end = -CLOCK_SECONDS <= later <= (math.inf if waited else CLOCK_SECONDS)
    same_state = row["Slurm says"] == run.state or waited
    return same_state and row["Node"] == run.node and same_code and same_end


def _pool(shown: Mapping[str, Any], allocations: Mapping[str, Any], world: World, kind: str, name: str) -> list[str]:
    """Differences between a pool's own view and the world. `allocations`: the view of all allocations."""
    prefix = f"{name}-{SHORT[kind]}-"
    own = {row["Job"] for row in allocations["tables"].get("Allocations", []) if row["Allocation"].startswith(prefix)}
    jobs = {id: job for id, job in world.jobs.items() if id in own}
    found = _allocations(shown, replace(world, jobs=jobs))
    stored = world.conditions.get((kind, name), {})
    conditions = {row["Condition"]: (row["Status"], row["Reason"]) for row in shown["tables"].get("Conditions", [])}
    if conditions != stored:
        found.append(f"conditions: shown {conditions}, in the store {stored}")
    if "Ready" in stored and shown["facts"].get("State") != (
        "Ready" if stored["Ready"][0] == "True" else stored["Ready"][1]
    ):
        found.append(f"state: shown {shown['facts'].get('State')}, in the store {stored['Ready']}")
    processes = {one for one in world.agents[kind] if one.startswith(prefix)}
    if int(shown["facts"].get("Ready", "0")) > len(processes):
        found.append(f"{shown['facts']['Ready']} shown as ready, processes of {sorted(processes)}")
    for row in shown["tables"].get("Stages", []):
        if row["In flight"] != str(world.counts[row["Stage"]]):
            found.append(
                f"{row['Stage']}: shown {row['In flight']} in flight, in the store {world.counts[row['Stage']]}"
            )
    if kind == "RolloutPool":
        queued = [row["Queued"] for row in shown["tables"].get("Stages", [])]
        if not all(word.isdigit() for word in queued) or sum(map(int, queued)) != world.counts["Queued"]:
            found.append(f"queued: shown {queued}, in the store {world.counts['Queued']}")
    return [f"{kind} {name}: {one}" for one in [*found, *shown["unknown"]]]


def _rollout(shown: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Differences between a rollout's own view and its row in the store."""
    facts, ended = shown["facts"], row["finished_at"] is not None
    right = {
        "Status": row["status"] if ended else f"{row['status']} in {row['stage']}",
        "Reward": UNKNOWN if row["reward"] is None else f"{row['reward']:.4g}",
        "Pool": row["pool"],
        "Node": row["node"] or UNKNOWN,
        **({} if row["turns"] is None else {"Turns": str(row["turns"])}),
    }
    found = [
        f"{word} is shown as {facts.get(word)}, in the store {r}" for word, r in right.items() if facts.get(word) != r
    ]
    if not re.match(rf"{row['attempt']}\b", facts.get("Attempt", "")):
        found.append(f"attempt {facts.get('Attempt')}, in the store {row['attempt']}")
    if (facts.get("Ended") != UNKNOWN) != ended or (ended and abs(_unix(facts["Ended"]) - row["finished_at"]) > 1):
        found.append(f"the end is shown as {facts.get('Ended')}, in the store {row['finished_at']}")
    entries = 1 + sum(not line.isdigit() for line in row["history"].splitlines())  # the first is not stored
    if (lines := len(shown["tables"].get("History", []))) != entries:
        found.append(f"{lines} entries of the history, in the store {entries}")
    return [f"rollout {row['id']}: {one}" for one in [*found, *shown["unknown"]]]


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _later(time_of_day: str, since: float) -> float:
    """Seconds from `since` to a time of day in the browser's zone."""
    day = datetime.fromtimestamp(since, ZONE_TIME).date()
    at = datetime.combine(day, datetime.strptime(time_of_day, "%H:%M:%S").time(), ZONE_TIME)
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
async def shown_page(yard: Yard) -> AsyncIterator[ShownPage | None]:
    """Open the page, to compare it with the world. Yield None if no browser can be had."""
    async with page_tab(yard) as opened:
        if opened is not None:
            await opened[0].call("Emulation.setTimezoneOverride", timezoneId=ZONE)
        yield ShownPage(*opened, yard) if opened is not None else None
