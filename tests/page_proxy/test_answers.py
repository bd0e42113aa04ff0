"""The page and the command line answer the same questions with the same figures: a browser clicks, a command is run, and both
are compared with the API. On the yard of the recorded training."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.client.kubeconfig import load_context
from rollyard.kinds.base import evolve
from rollyard.kinds.event import InvolvedObject
from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.page_proxy.recording import RECORDING, read, restore
from rollyard.server.rollouts.step import Finished, Granted, Lost, step
from rollyard.store.base import RolloutRecord
from rollyard.store.store import Store
from tests.page_proxy.conftest import RunningProxy, start
from tests.page_proxy.test_pages import sign_in
from tests.support import make
from tests.support.browser import Browser, Tab
from tests.support.yard import Yard, end

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.heavy]
KEPT = re.compile(r"tasks-g1?[0-9]\.[0-9]|r-e26fbe9ed101b875")
"""Rollouts of the recording that suffice."""
CELLS = """caption => [...document.querySelectorAll('table')].filter(table => table.caption?.textContent === caption)
  .flatMap(table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent)))"""
LOST = RolloutError(stage=Stage.RUN, reason="SandboxLost", message="it died")
MAIN = "document.querySelector('main').textContent"


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def recorded(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> AsyncIterator[Yard]:
    made = Yard(tmp_path_factory.mktemp("yard"))
    lines, began = read(RECORDING, made.folder / "model")
    await restore(
        [line for line in lines if line.table != "rollout" or KEPT.fullmatch(line.record["id"])], began, made.data
    )
    await add_losses(made)
    await add_warnings(made)
    made.start()
    yield made
    await end(made)


async def add_losses(yard: Yard) -> None:
    """Add a rollout of now that lost its sandbox and its lease, each on a node of its own, and went on."""
    now = time.time()
    fault = Finished(now - 30, 1, Status.INFRA_FAILED, None, LOST, None, 3, 0)
    record = make.rollout("lost-twice", pool="train", created_at=now - 60)
    events = (on("lost-1", now - 40), fault, on("lost-2", now - 20), Lost(now - 10, 2, "Expired"))
    for event in events:
        record, _ = step(record, event)
    store = await Store.open(yard.data)
    try:
        await store.rollouts.transact(lambda tx: [tx.put(one) for one in (record, *of_two_kinds(now))])
    finally:
        await store.close()


def of_two_kinds(now: float) -> list[RolloutRecord]:
    """Make three ended rollouts in a namespace of their own."""
    return [
        replace(
            make.rollout(f"kind-{number}", status=Status.COMPLETED, reward=1.0, summary={"tokens": tokens, "turns": 1}),
            namespace="kinds",
            task_kind=kind,
            finished_at=now,
        )
        for number, (kind, tokens) in enumerate((("math", 10), ("code", 30), ("code", 60)))
    ]


async def add_warnings(yard: Yard) -> None:
    """Add warnings of the last minutes: more of one reason and pool than a page begins with, and among them many others."""
    now = time.time()
    refused = [("SubmitRefused", "Allocation", f"flood-rp-{number}", now - 120 + number / 10) for number in range(600)]
    rare = [("JobFailed", "Allocation", "rare-ip-1", now - 70.5), ("SubmitRefused", "RolloutPool", "flood", now - 71.5)]
    others = [(f"Other{number}", "RolloutPool", "rare", now - 75.05 - number / 10) for number in range(20)]
    store = await Store.open(yard.data)
    try:
        for number, (reason, kind, name, at) in enumerate(refused + rare + others):
            about = InvolvedObject(kind=kind, namespace="default", name=name)
            event = make.event(f"warning-{number}", at=at, count=1 + (kind == "RolloutPool"))
            await store.objects.create(
                evolve(event, type="Warning", reason=reason, message=f"of {name}", involved_object=about)
            )
    finally:
        await store.close()


def on(node: str, at: float) -> Granted:
    return Granted(at, "uid/i", node, {"policy": "e"})


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def opened(recorded: Yard, browser: Browser) -> AsyncIterator[tuple[RunningProxy, Tab, AsyncClient]]:
    async with AsyncExitStack() as stack:
        file = recorded.data / "admin.kubeconfig"
        proxy = await start(load_context(file), stack)
        client = await stack.enter_async_context(AsyncClient(kubeconfig=file))
        yield proxy, await sign_in(proxy, browser), client


async def cells(tab: Tab, caption: str) -> list[list[str]]:
    """Rows of the table with this caption, once it is there."""
    asked = f"({CELLS})({json.dumps(caption)})"
    rows: list[list[str]] = await tab.until(f"{asked}.length ? {asked} : null")
    return rows


def number(text: str) -> float:
    return float(text.replace("\u2009", ""))


async def test_where_time_and_tokens_go(opened: tuple[RunningProxy, Tab, AsyncClient], recorded: Yard) -> None:
    proxy, tab, client = opened
    await tab.go(proxy.page + "#/trainings/tasks")
    found = await client.profile(search={"prefix": "tasks-g"})
    stages = await cells(tab, "Time by stage")
    assert [row[0] for row in stages] == ["waiting", "INIT", "RUN", "EVAL"]
    parts = {row[0]: number(row[2]) for row in await cells(tab, "Tokens by part")}
    assert parts["first prompt"] == found.tokens.prompt > 0
    assert parts["tool calls"] == found.tokens.calls > 0
    assert sum(parts.values()) == sum(found.tokens.model_dump().values())
    tools = {row[0]: [number(cell) for cell in row[1:3]] for row in await cells(tab, "Tools")}
    assert tools == {row.tool: [row.calls, row.failed] for row in found.by_tool}
    turns = await cells(tab, "Tokens by turn")
    assert number(turns[0][1]) == found.bands[0].turns == found.rollouts
    out, _ = await recorded.rollyard("rollouts", "profile", "--prefix", "tasks-g", "-o", "json")
    assert json.loads(out) == found.model_dump(mode="json")

    failing = next(row for row in found.by_tool if row.failed)
    await tab.click(f"a[aria-label^='{failing.failed} failed calls of {failing.tool}']")
    await tab.until(f"location.hash.includes('failed_tool=') && {MAIN}.includes('rollout')")
    rows = await cells(tab, "Rollouts")
    out, _ = await recorded.rollyard(
        "rollouts", "list", "--prefix", "tasks-g", "--failed-tool", failing.tool, "-o", "json"
    )
    assert {row[0] for row in rows} == {view["id"] for view in json.loads(out)}
    assert sum(view["failed_calls"] for view in json.loads(out)) >= failing.failed
    await tab.until(f"{MAIN}.includes('{len(rows)} rollout')")
    await tab.click("main a[href^='#/rollouts/']")
    await tab.until("[...document.querySelectorAll('.call .mark')].some(m => m.textContent.includes('failed'))")
    assert tab.faults == []


async def test_tokens_of_several_task_kinds(opened: tuple[RunningProxy, Tab, AsyncClient]) -> None:
    proxy, tab, _ = opened
    await tab.go(proxy.page + "#/profile?ns=kinds")
    found = await cells(tab, "Tokens by task kind")
    assert found == [["code", "2", "90", "45", "90%"], ["math", "1", "10", "10", "10%"]]
    assert tab.faults == []


async def test_hardest_tasks_and_quartiles_of_a_training(
    opened: tuple[RunningProxy, Tab, AsyncClient], recorded: Yard
) -> None:
    proxy, tab, client = opened
    await tab.go(proxy.page + "#/trainings/tasks")
    rows = await client.summarize("task", search={"prefix": "tasks-g"}, limit=2000)
    never = {row.value for row in rows if row.scored and row.best_reward == 0}
    assert never
    assert {row[0] for row in await cells(tab, "Tasks that were never solved")} == never
    out, _ = await recorded.rollyard("rollouts", "summary", "--by", "task", "--prefix", "tasks-g", "-o", "json")
    assert {row["value"] for row in json.loads(out) if row["best_reward"] == 0} == never
    batches = await client.batches(series="tasks")
    steps = (await client.batch_history(batches[0].id, series=True)).steps
    shares = sum(step.differing for step in steps) / sum(step.compared for step in steps)
    await tab.until(f"{MAIN}.includes('Informative{shares:.0%}')")
    assert all(step.reward_quartiles == sorted(step.reward_quartiles or []) for step in steps)
    await tab.until("document.querySelector('.chart path.band')?.getAttribute('d').length > 20")
    label = "document.querySelector('main .chart svg').getAttribute('aria-label')"
    assert "median: last" in await tab.evaluate(label)
    out, _ = await recorded.rollyard("batches", "steps", "tasks", "--series")
    assert "QUARTILES" in out.splitlines()[0]


async def test_usage_nodes_and_the_newest_batches(
    opened: tuple[RunningProxy, Tab, AsyncClient], recorded: Yard
) -> None:
    proxy, tab, client = opened
    await tab.go(proxy.page + "#/usage")
    total = (await client.usage("default")).total
    last = (await cells(tab, "Usage"))[-1]
    assert last[0] == "Total"
    assert [number(one) for one in last[5:7]] == [total.rollouts, total.scored]
    assert number(last[10]) == total.sampled_tokens > 0
    heads = "[...document.querySelector('main table').tHead.rows[0].cells].map(cell => cell.textContent)"
    assert (await tab.evaluate(heads))[8] == "Scored per CPU-hour"
    await tab.until(f"{MAIN}.includes('Not known: there is no Slurm here')")
    out, told = await recorded.rollyard("usage", "--slurm", code=1)
    assert "there is no Slurm here" in told
    await tab.click("main a[href='#/usage?by=week']")
    await tab.until(f"/^20\\d\\d-W/.test((({CELLS})('Usage')[0] ?? [''])[0])")

    await tab.go(proxy.page + "#/allocations?hours=24")
    node, *_ = await cells(tab, "Nodes")
    (known,) = await client.nodes(since=0.0)
    assert (node[0], number(node[4])) == (known.node, known.rollouts)
    out, _ = await recorded.rollyard("top", "nodes", "--since", "yesterday")
    assert known.node in out

    await tab.go(proxy.page + "#/batches")
    means = [one.reward_mean for one in (await client.batches())[:10] if one.reward_mean is not None]
    _, told = await recorded.rollyard("batches", "list", "--limit", "10")
    assert f"mean of their mean rewards: {sum(means) / len(means):.3f}" in told
    await tab.until(f"{MAIN}.includes('newest {len(means)}: {float(f'{sum(means) / len(means):.3g}'):g}')")
    _, told = await recorded.rollyard("rollouts", "list", "--limit", "1")
    assert told.startswith("1 of ")
    for order, column in (("-ended", "ENDED"), ("seconds", "SECONDS"), ("-failed_calls", "FAILED CALLS")):
        listed, _ = await recorded.rollyard("rollouts", "list", "--sort", order, "--limit", "1")
        assert listed.splitlines()[0].endswith(column)
    _, told = await recorded.rollyard("rollouts", "summary", "--by", "task")
    assert "rollouts of several modes together (eval, train); --mode MODE" in told
    assert (await recorded.rollyard("rollouts", "summary", "--by", "task", "--mode", "train"))[1] == ""
    await tab.go(proxy.page + "#/overview?hours=1")
    await tab.until(f"{MAIN}.includes('No rollout ended without a reward in this time.')")
    assert tab.faults == []


async def test_what_was_lost_although_no_rollout_ended_without_a_reward(
    opened: tuple[RunningProxy, Tab, AsyncClient], recorded: Yard
) -> None:
    proxy, tab, client = opened
    wanted = [["Expired", "lost-2", "1", "1"], ["SandboxLost", "lost-1", "1", "1"]]
    assert [[r.reason, r.node, str(r.losses), str(r.rollouts)] for r in (await client.losses()).rows] == wanted
    out, told = await recorded.rollyard("rollouts", "losses", "--since", "1h")
    assert [line.split() for line in out.splitlines()[1:]] == [[*row, "lost-twice"] for row in wanted]
    assert "2 lost attempts and leases since" in told
    out, _ = await recorded.rollyard("top", "nodes", "--since", "1h")
    assert [line.split()[:4] for line in out.splitlines() if "lost-" in line] == [
        ["lost-1", "0", "0", "1"],
        ["lost-2", "0", "0", "1"],
    ]
    out, _ = await recorded.rollyard("rollouts", "losses", "-o", "json")
    assert [row["newest"] for row in json.loads(out)["rows"]] == ["lost-twice"] * 2
    out, _ = await recorded.rollyard("rollouts", "list", "--lost-reason", "Expired", "-o", "id")
    assert out.split() == ["lost-twice"]
    assert (await recorded.rollyard("rollouts", "list", "--lost-reason", "NodeFault", "-o", "id"))[0] == ""
    out, _ = await recorded.rollyard("rollouts", "list", "--lost")
    head, row = (line.split() for line in out.splitlines())
    assert (head[-1], row[0], row[-1]) == ("LOST", "lost-twice", "2")

    await tab.go(proxy.page + "#/allocations?hours=1")
    await tab.until(f"({CELLS})('Nodes').some(row => row[6] === '1')")
    lost = {row[0]: row[6] for row in await cells(tab, "Nodes") if row[0].startswith("lost-")}
    assert lost == {"lost-1": "1", "lost-2": "1"}
    await tab.go(proxy.page + "#/overview?hours=1")
    assert [row[:4] for row in await cells(tab, "Losses by reason")] == wanted
    await tab.click("main a[href*='lost_reason=SandboxLost']")
    await tab.until(f"location.hash.includes('lost_reason=') && {MAIN}.includes('1 rollout.')")
    (row,) = await cells(tab, "Rollouts")
    assert row[0] == "lost-twice"
    assert tab.faults == []


async def test_no_warning_hides_the_others(opened: tuple[RunningProxy, Tab, AsyncClient]) -> None:
    proxy, tab, _ = opened
    await tab.go(proxy.page + "#/overview")
    rows = [row[1:] for row in await cells(tab, "Warnings of the last hour")]
    held = "[...m.live.kinds.Event.values()].filter(e => e.reason === 'SubmitRefused')"
    sum_of = f"import('/ui/live.js').then(m => {held}.reduce((sum, e) => sum + e.count, 0))"
    assert [row for row in rows if "SubmitRefused" in row[0]] == [
        ["▲ SubmitRefused", str(await tab.evaluate(sum_of)), "flood-rp-599", "of flood-rp-599"]
    ]
    assert ["▲ JobFailed", "1", "rare-ip-1", "of rare-ip-1"] in rows
    assert ["▲ Other0", "2", "rare", "of rare"] in rows
    assert len(rows) == 12
    listed = [row[1] for row in await cells(tab, "Events")]
    assert len(listed) == 12
    assert (listed.count("▲ SubmitRefused"), listed.count("▲ JobFailed")) == (1, 1)
    text = await tab.evaluate(MAIN)
    assert re.search(r"\d+ more, last seen earlier\. rollyard events shows all", text)
    assert re.search(r"The page has events since [0-9: -]+ only", text)
    assert tab.faults == []


async def test_a_search_that_finds_none_says_why(opened: tuple[RunningProxy, Tab, AsyncClient], recorded: Yard) -> None:
    proxy, tab, _ = opened
    for words in (("list", "--sort", "-ended"), ("summary",), ("profile",)):
        _, told = await recorded.rollyard("rollouts", *words, "--prefix", "lost-twice")
        assert "1 rollouts match, and none of them counts here: each has not ended" in told
    await tab.go(proxy.page + "#/rollouts?prefix=lost-twice")
    await tab.until(f"{MAIN}.includes('1 rollout matches and has not ended.')")
    await tab.click("main .empty a")
    assert [row[0] for row in await cells(tab, "Rollouts")] == ["lost-twice"]
    await tab.go(proxy.page + "#/overview")
    await tab.until(f"{MAIN}.includes('Suspicious, 24 h0')")
    await tab.click("main a[href*='suspicious=true']")
    await tab.until(f"{MAIN}.includes('No reward in this search has a mark of a hack.')")
    assert tab.faults == []


async def test_a_failed_call_is_named_by_the_command_too(recorded: Yard) -> None:
    out, _ = await recorded.rollyard("rollouts", "list", "--failed-tool", "ipython", "--limit", "1", "-o", "id")
    assert "--- tool result, failed" in (await recorded.rollyard("logs", f"rollout/{out.strip()}"))[0]


async def test_least_likely_tokens_and_calls_of_a_rollout(opened: tuple[RunningProxy, Tab, AsyncClient]) -> None:
    proxy, tab, client = opened
    search = {"prefix": "tasks-g", "sort": "-failed_calls"}
    (most,) = [view async for view in client.rollouts(search=search, limit=1)]
    one = await client.wait(most.id)
    calls = sum(max(len(turn.tool_calls), *(n + 1 for n in turn.failed_calls or [-1])) for turn in one.turns)
    await tab.go(f"{proxy.page}#/rollouts/{one.id}?view=tokens")
    await tab.until(f"{MAIN}.includes('Tool calls{calls}')")
    await tab.click("details.least summary")
    sampled = sorted(
        p for s in one.segments for p, m in zip(s.logprobs, s.loss_mask, strict=True) if m and p is not None
    )
    listed = "[...document.querySelectorAll('details.least li')]"
    await tab.until(f"{listed}.length === {min(10, len(sampled))}")
    shown = await tab.evaluate(f"{listed}.map(one => Number(one.textContent.split(' ').at(-2)))")
    assert shown == pytest.approx([100 * math.exp(p) for p in sampled[:10]], rel=0.01)
    await tab.click("details.least button")
    await tab.until("document.querySelector('.token-line').textContent.includes('sampled, logprob')")
    assert tab.faults == []


async def test_a_group_shows_its_task_and_a_pool_its_revisions(opened: tuple[RunningProxy, Tab, AsyncClient]) -> None:
    proxy, tab, client = opened
    await tab.go(f"{proxy.page}#/groups/tasks-g1")
    task = (await client.wait("tasks-g1.0")).task
    await tab.until(
        f"document.querySelector('main .asked')?.textContent.includes({json.dumps(task.model_dump()['problem'][:60])})"
    )
    before, after = (
        {"stages": {"run": {"max": 2}}, "nodes": ["a"]},
        {"stages": {"run": {"max": 3}}, "nodes": ["b"], "x": 1},
    )
    asked = f"[...m.changes(...{json.dumps([before, after])})]"
    assert await tab.evaluate(f"import('/ui/revisions.js').then(m => {asked})") == [
        'nodes: ["a"] → ["b"]', "stages.run.max: 2 → 3", "x: not set → 1",
    ]  # fmt: skip
    await tab.go(f"{proxy.page}#/pools/RolloutPool/train")
    await tab.until(f"{MAIN}.includes('Revisions')")
    assert (await cells(tab, "Revisions, newest first"))[-1][::2] == ["1", "the first"]
    assert tab.faults == []
