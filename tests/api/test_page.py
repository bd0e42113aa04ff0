"""The dashboard's page in a real browser: what it shows is what the server has, and text of a model stays text."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import zstandard

from rollyard.cli.snapshot_lines import size
from rollyard.client.kubeconfig import Context
from rollyard.kinds.base import evolve
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.page_proxy.main import listen
from rollyard.store.base import MissingImage
from rollyard.trajectory import Outcome, Segment, Turn
from rollyard.trajectory.columns import encode
from rollyard.wire.node import LeaseRef, ResultHeader
from tests.api.test_batches import client_of
from tests.api.test_rollouts_waiting import KEY, _stored, pool, submit
from tests.api.test_running_turns import saved
from tests.support import make
from tests.support.browser import Tab, chromium
from tests.support.outside_api import Api, Serve
from tests.support.played_pool import PlayedPool
from tests.support.reports import finish
from tests.support.token_canvas import DRAWN, LINE, PIXELS, places, point, press

pytestmark = pytest.mark.heavy

HOSTILE = "<img src=x onerror=alert(1)> \x1b[31mred\x1b[0m \u202egnp.exe\u202c \r\n</pre><script>alert(2)</script>"
SEEN = "<img src=x onerror=alert(1)> ␛[31mred␛[0m \\u202egnp.exe\\u202c \n</pre><script>alert(2)</script>"
FIRST = Segment(
    token_ids=[1, 30, 31, 32], loss_mask=[0, 0, 1, 1], logprobs=[None, None, -0.01, -6.0],
    weights_version=[None, None, "v1", "v2"], prompt_length=2,
)  # fmt: skip
SECOND = Segment(
    token_ids=[1, 30, 33], loss_mask=[0, 0, 1], logprobs=[None, None, -0.5], weights_version=[None, None, "v2"],
    prompt_length=2, extras={"opened_by": {"cause": "ThoughtsDropped", "turn": 1}},
)  # fmt: skip
TURNS = [
    Turn(
        segment=0, prompt_length=2, response_length=2, text=f"<think>{HOSTILE}</think>I look.\n<tool_call>{{}}</tool_call>",
        finish_reason="stop", tool_calls=[{"name": "bash", "arguments": {"command": HOSTILE}}], tool_results=[HOSTILE],
    ),
    Turn(segment=1, prompt_length=2, response_length=1, text="Done.", finish_reason="length"),
]  # fmt: skip

COLOUR = f"{PIXELS}(1)[0]"
"""Colour of a corner of the tokens."""


@dataclass
class Page:
    tab: Tab
    address: str

    async def show(self, view: str, ready: str) -> None:
        """Open a view, and wait until an expression is true."""
        await self.tab.evaluate(f"location.hash = {json.dumps(view)}")
        await self.tab.until(ready)

    async def text(self, selector: str = "main") -> str:
        found: str = await self.tab.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    async def texts(self, selector: str) -> list[str]:
        found: list[str] = await self.tab.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
        )
        return found


@asynccontextmanager
async def opened(api: Api) -> AsyncIterator[Page]:
    async with AsyncExitStack() as stack:
        announced: list[str] = []
        await listen(Context(api.url, None, api.admin, "default", None), 0, announced.append, stack)
        browser = await stack.enter_async_context(chromium())
        tab = await browser.tab(announced[0])
        await tab.until("document.querySelector('.connection.on') !== null")
        yield Page(tab, announced[0].partition("?")[0])


async def _end(api: Api, outcome: Outcome) -> None:
    """End the rollout that is first in the queue."""
    (record,) = await PlayedPool(api.parts).lease()
    header = ResultHeader(
        lease=LeaseRef(namespace="default", id=record.id, fence=record.fence),
        status=outcome.status, reward=outcome.reward, error=outcome.error, turns=len(outcome.turns), tokens=3, prompt_tokens=4,
        sampled=3, timings={"run": 1.0},
    )  # fmt: skip
    await finish(api.rollouts, header, "u", zstandard.compress(encode([outcome])))


async def _save(api: Any, id: str, kept: int, texts: list[str]) -> None:
    """Save turns of a rollout behind the first `kept` ones, as its node agent does."""

    def change(tx: Any) -> None:
        record = tx.get("default", id)
        tx.put_turns(record, kept, [saved(text) for text in texts])
        tx.put(replace(record, saved_turns=kept + len(texts)))

    await api.store.rollouts.transact(change)


async def test_a_trajectory_is_shown_as_it_is_and_nothing_in_it_runs(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        await submit(api, "hostile", "faulty", "waits")
        await _end(
            api, Outcome(status=Status.COMPLETED, reward=0.5, segments=[FIRST, SECOND], turns=TURNS, notes=[HOSTILE])
        )
        error = RolloutError(stage=Stage.RUN, reason="Test", message=HOSTILE)
        await _end(api, Outcome(status=Status.FAILED, error=error))
        async with opened(api) as page:
            await page.show("#/rollouts/hostile", "document.querySelectorAll('.turn').length === 2")
            assert await page.texts(".thoughts pre") == [SEEN]
            assert await page.texts(".said pre") == ["I look.", "Done."]
            assert await page.texts(".call pre") == [SEEN, SEEN]  # the argument, and the output
            # a turn beyond the window is not drawn yet, so it has a text but no visible one
            assert "ThoughtsDropped" in (await page.texts(".break"))[0]
            assert "cut at the limit of tokens" in (await page.texts("#turn-2"))[0]

            tab = page.tab
            await page.show("#/rollouts/hostile?view=tokens", DRAWN)
            lines = [await press(tab, "ArrowRight") for _ in range(7)]
            assert [line.partition(" of 7 tokens")[0] for line in lines] == [f"Index {n}" for n in range(7)]
            assert sum("· sampled, logprob" in line for line in lines) == 3
            assert len({y for _, y in await places(tab, "begins", "color")}) == 2, "one line of two pixels"
            light = await tab.evaluate(COLOUR)
            await tab.look(dark=True)
            await tab.until(f"{COLOUR} !== {light}")
            assert await places(tab, "sampled") != []
            await tab.look()
            await tab.until(f"{COLOUR} === {light}")
            await page.show(
                "#/rollouts/hostile?view=tokens&colour=logprob", "document.querySelector('.legend .p4') !== null"
            )
            x, y = (await places(tab, "p4"))[0]
            await point(tab, x + 1, y + 1)
            await tab.until(f"{LINE}.includes('logprob −6.0000')")
            assert "weights v2" in await page.text(".token-line")

            await page.show("#/rollouts/faulty", "document.querySelector('main').textContent.includes('no reward')")
            assert "Test" in await page.text()
            await page.show("#/rollouts/waits", "document.querySelector('main .empty') !== null")
            assert "No turn is saved yet" in await page.text()

            await _save(api, "waits", 0, [HOSTILE])
            await page.tab.until("document.querySelectorAll('.turn').length === 1")
            assert await page.texts(".said pre") == [SEEN]
            await _save(api, "waits", 1, ["second", "third"])
            await page.tab.until("document.querySelectorAll('.turn').length === 3")
            assert await page.texts(".said pre") == [SEEN, "second", "third"]
            assert "3 turns so far" in await page.text()
            await page.show("#/overview", "document.querySelector('main a[href*=reason]') !== null")
            assert await page.texts("main a[href*=reason]") == ["Test"]
            assert page.tab.dialogs == []
            assert page.tab.faults == []
            assert all(url.startswith(page.address.removesuffix("/ui/")) for url in page.tab.requested)


async def test_changes_appear_by_themselves_and_a_lost_server_is_told(serving: Serve) -> None:
    async with AsyncExitStack() as rest:
        async with serving() as api:
            page = await rest.enter_async_context(opened(api))
            await page.show("#/pools", "document.querySelector('main') !== null")
            await pool(api)
            await page.tab.until("document.querySelector('main table')?.textContent.includes('swe')")
            row = "[...document.querySelectorAll('tbody tr')].find(r => r.textContent.includes('swe'))"
            assert "not known" in await page.tab.evaluate(f"{row}.textContent")  # no condition was observed yet
        await page.tab.until("document.querySelector('.banner')?.textContent.includes('Not connected since')")
        assert "swe" in await page.text()  # what was known stays, and is said to be old


async def test_what_follows_at_a_walltime_and_what_waits_are_told(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        owner = {"kind": "RolloutPool", "name": "swe", "uid": (await _stored(api)).metadata.uid}
        now = datetime.now(UTC)
        job = {
            "job_id": "7",
            "job_state": "RUNNING",
            "node": "n1",
            "ready": True,
            "ready_at": now - timedelta(minutes=9),
        }
        job |= {"start_time": now - timedelta(minutes=10), "end_time": now + timedelta(hours=3)}
        first = make.allocation("swe-rp-0", spec={"pool": owner}, intents=1, intended_at=now, **job)
        await api.store.objects.create(first)
        await api.store.objects.create(make.allocation("gone-rp-0", intents=1, intended_at=now, **job))
        async with opened(api) as page:
            told = "[...document.querySelectorAll('main p')].find(p => /Slurm ends the job/.test(p.textContent))?.textContent"
            await page.show("#/allocations/swe-rp-0", f"({told})?.includes('A successor is submitted before')")
            (planned,) = await client.planned_successors("default")
            facts = await page.text(".facts")
            submitted = re.search(r"submitted about (\d\d:\d\d:\d\d).*takes over about (\d\d:\d\d:\d\d)", facts)
            assert submitted is not None, facts
            for shown, at in zip(submitted.groups(), (planned.submit_at, planned.take_over_at), strict=True):
                assert shown == datetime.fromtimestamp(at or 0.0).strftime("%H:%M:%S")
            await page.show("#/allocations/gone-rp-0", f"({told})?.includes('No successor is planned.')")

            pending = {"job_id": "8", "job_state": "PENDING", "reason": "Resources", "intents": 1, "intended_at": now}
            spec = {"pool": owner, "successor_of": "swe-rp-0"}
            await api.store.objects.create(make.allocation("swe-rp-1", spec=spec, **pending))
            await page.show("#/allocations/swe-rp-0", f"({told})?.includes('swe-rp-1 replaces it')")
            stored = await api.store.objects.get(first.key)
            drained = evolve(stored, spec=evolve(stored.spec, drain=True))
            await api.store.objects.update(drained, "spec")
            await page.tab.until(
                f"({told})?.startsWith('It drains: it takes no new work, and its rollouts are finished')"
            )

            await page.tab.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
            await submit(api, "a", "b")
            images = [
                MissingImage(
                    KEY, "docker://r/0", "no route", failures=2, since=now.timestamp() - 60, until=now.timestamp() + 60
                ),
                MissingImage(KEY, "docker://r/1", "no such tag", failures=1, since=now.timestamp(), permanent=True),
                MissingImage(PoolKey("default", "other"), "docker://r/2", "no route", failures=1),
            ]
            await api.store.rollouts.transact(lambda tx: [tx.put_missing_image(one) for one in images])
            await page.show("#/overview", "document.querySelectorAll('#waits ~ .stack').length === 2")
            rollouts, jobs = await page.texts("#waits ~ .stack tbody")
            assert rollouts.startswith("2AllocationPendingRolloutPool swe waits for job 8"), rollouts
            shown, local = re.search(r"since (\d\d):(\d\d):\d\d\)", rollouts), now + timedelta(hours=5.5)
            assert shown is not None, "in the browser's zone"
            assert (int(shown[1]) * 60 + int(shown[2]) - local.hour * 60 - local.minute) % 1440 < 10
            assert "UTC" not in rollouts
            assert jobs.startswith("swe-rp-18Resources")
            await page.show(
                "#/pools/RolloutPool/swe",
                "document.querySelector('main').textContent.includes('nodes of this pool: 2')",
            )
            missing = await page.texts("[aria-label='Missing images'] tbody tr")
            assert missing[0].startswith("docker://r/02")
            assert missing[0].endswith("0when a rollout needs itno route")
            assert missing[1].endswith("no such tag Somebody must change the image or the pool.")
            assert [fault for fault in page.tab.faults if "/log?" not in fault] == [], "but a job without output"


async def test_a_history_becomes_spans_of_time(serving: Serve) -> None:
    entries = [
        {"at": 0, "event": "Queued", "attempt": 1, "stage": "INIT"},
        {"at": 2, "event": "Leased", "attempt": 1, "stage": "INIT", "node": "n1", "lease": 1},
        {"at": 3, "event": "StageBegun", "attempt": 1, "stage": "RUN"},
        {"at": 7, "event": "Fault", "attempt": 1, "stage": "RUN", "reason": "SandboxLost"},
        {"at": 9, "event": "Leased", "attempt": 2, "stage": "INIT", "node": "n2", "lease": 2},
        {"at": 10, "event": "StageBegun", "attempt": 2, "stage": "RUN"},
    ]
    async with serving() as api, opened(api) as page:
        asked = f"import('/ui/history.js').then(m => m.phases({json.dumps(entries)}, 15))"
        found = await page.tab.evaluate(
            f"{asked}.then(all => all.map(p => [p.kind, p.to - p.from, p.attempt, p.open]))"
        )
        assert found == [
            ["queued", 2, 1, False], ["INIT", 1, 1, False], ["RUN", 4, 1, False],
            ["queued", 2, 1, False], ["INIT", 1, 2, False], ["RUN", 5, 2, True],
        ]  # fmt: skip
        sizes = await page.tab.evaluate(
            "import('/ui/format.js').then(({bytes}) => [0, 1023, 1536, 3 * 2 ** 40, undefined].map(bytes))"
        )
        assert sizes == [*map(size, (0, 1023, 1536, 3 << 40)), "–"]
        found = await page.tab.evaluate(
            "import('/ui/token_rows.js').then(({TokenLayout}) => {"
            " const known = {texts: {1: 'a', 5: 'b'}, bytes: {2: 'e2', 3: '96', 4: '81', 6: '81e296', 7: 'ff'}};"
            " const layout = new TokenLayout([1, 2, 3, 4, 5, 2, 3, 6, 4, 7, 1], known, [{start: 0}, {start: 4}], 3);"
            " const steps = [];"
            " while (!layout.whole) { layout.more(4); steps.push([layout.texts.length, layout.rows]); }"
            " return [layout.texts, layout.starts, steps, layout.rowOf(7)]; })"
        )
        assert found == [
            ["a", "·", "·", "▁", "b", "·", "·", "▁", "▁", "·", "a"],
            [0, 3, 4, 7, 10],  # rows of three characters; the second segment begins a row
            [[4, 1], [8, 3], [11, 5]],  # a piece at a time; the last row may still grow
            3,
        ]
