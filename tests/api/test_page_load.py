"""The page under load: what it holds, draws and asks for does not grow with what changes or with what is stored."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from rollyard.kinds.base import ObjectKey, evolve
from rollyard.kinds.rollout import Status
from rollyard.trajectory import Outcome, Segment, Turn
from tests.api.test_page import _end, opened
from tests.api.test_rollouts_waiting import change, pool, submit
from tests.support import make
from tests.support.outside_api import Api, Serve

pytestmark = pytest.mark.heavy
TOKENS, TURNS = 60_000, 100
EVENTS_KEPT = 1000
ROWS_DRAWN = 60
"""More rows than a window of 800 pixels and its edges have."""


def long_outcome() -> Outcome:
    each = TOKENS // TURNS
    mask = [int(i % each >= each // 2) for i in range(TOKENS)]
    segment = Segment(
        token_ids=[30 + i % 60 for i in range(TOKENS)], loss_mask=mask, prompt_length=each // 2,
        logprobs=[-0.5 if m else None for m in mask], weights_version=["v1" if m else None for m in mask],
    )  # fmt: skip
    text = "a line\n" * 400_000
    turns = [
        Turn(segment=0, prompt_length=n * each + each // 2, response_length=each // 2, text="I look.", finish_reason="stop",
             tool_calls=[{"name": "bash", "arguments": {}}] if n == 0 else [], tool_results=[text] if n == 0 else [])
        for n in range(TURNS)
    ]  # fmt: skip
    return Outcome(status=Status.COMPLETED, reward=1.0, segments=[segment], turns=turns)


async def test_of_a_long_trajectory_only_what_one_sees_is_drawn(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        await submit(api, "long")
        await _end(api, long_outcome())
        async with opened(api) as page:
            tab = page.tab
            rows = "document.querySelectorAll('.tokens .row').length"
            place = "parseFloat(document.querySelector('.tokens .row').style.top)"
            await page.show("#/rollouts/long?view=tokens&turn=90", "document.querySelector('.tokens .chosen') !== null")
            turn_90 = 89 * TOKENS // TURNS + TOKENS // TURNS // 2
            assert await tab.evaluate("document.querySelector('.tokens .chosen').dataset.i") == str(turn_90)
            assert 0 < await tab.evaluate(rows) < ROWS_DRAWN
            assert await tab.evaluate(place) > 0, "it is in sight, and not the beginning"
            await tab.evaluate("document.querySelector('.tokens').focus()")
            for key, token in (("End", TOKENS - 1), ("Home", 0)):
                event = {"key": key, "ctrlKey": True, "bubbles": True}
                await tab.evaluate(
                    f"document.querySelector('.tokens').dispatchEvent(new KeyboardEvent('keydown', {json.dumps(event)}))"
                )
                await tab.until(f"document.querySelector('.tokens .chosen')?.dataset.i === '{token}'")
                await tab.until(
                    f"document.querySelector('.token-line').textContent.includes('Index {_spaced(token)} of')"
                )
                assert 0 < await tab.evaluate(rows) < ROWS_DRAWN
            seen = set()
            for share in (0.25, 0.5, 0.75, 1.0):
                top = f"document.querySelector('.tokens').scrollHeight * {share}"
                await tab.evaluate(f"document.querySelector('.tokens').scrollTop = {top}")
                await tab.until(f"Math.abs({place} - document.querySelector('.tokens').scrollTop) < 1000")
                seen.add(await tab.evaluate("document.querySelector('.tokens .tok').dataset.i"))
                assert 0 < await tab.evaluate(rows) < ROWS_DRAWN
            assert len(seen) == 4

            # a tool's output of 2.8 MB, in parts that the browser lays out when they come into sight
            await page.show("#/rollouts/long", f"document.querySelectorAll('.turn').length === {TURNS}")
            await tab.click(".call button[aria-expanded=false]")
            await tab.until("document.querySelector('.call pre[aria-busy]') === null")
            parts = "[...document.querySelectorAll('.call pre.output .part')]"
            assert await tab.evaluate(f"{parts}.map(p => p.textContent).join('').length") == 2_800_000
            assert await tab.evaluate(f"Math.max(...{parts}.map(p => p.textContent.length))") <= 16_000
            assert page.tab.faults == []


async def test_many_changes_cost_no_request_and_no_memory(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        async with opened(api) as page:
            tab = page.tab
            await page.show("#/pools", "document.querySelector('main table')?.textContent.includes('swe')")
            await tab.settle()
            asked = len(tab.requested)
            for start in range(0, EVENTS_KEPT + 300, 100):
                await asyncio.gather(*(_happened(api, n) for n in range(start, start + 100)))
            await change(api, replicas=7)
            events = "import('/ui/live.js').then(m => m.live.kinds.Event)"
            last = f"{events}.then(all => all.has('default/e{EVENTS_KEPT + 299}'))"
            await tab.until(last)
            assert await tab.evaluate(f"{events}.then(all => all.size)") == EVENTS_KEPT
            await tab.until("document.querySelector('main table').textContent.includes('fixed 7')")
            assert tab.requested[asked:] == [], "the stream brings the changes"

            # a tab that nobody sees draws nothing, and catches up when it is seen
            await tab.evaluate(
                "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true})"
            )
            await tab.evaluate("window.away = true")
            await change(api, replicas=8)
            size = "import('/ui/live.js').then(m => m.object('RolloutPool', 'default', 'swe').spec.replicas)"
            await tab.until(f"{size}.then(n => n === 8)")
            await tab.evaluate(
                "new Promise(done => setTimeout(done, 600))"
            )  # longer than the page waits before it draws
            assert "fixed 7" in await page.text("main table")
            await tab.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
            await tab.until("document.querySelector('main table').textContent.includes('fixed 8')")


async def test_of_several_changes_of_an_object_the_stream_has_the_last_one(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        key = ObjectKey(kind="RolloutPool", namespace="default", name="swe")
        async with api.http.get(f"{api.url}/v1/changes") as answer:
            while json.loads(await answer.content.readline())["type"] != "LISTED":
                pass
            for n in range(200):
                found = await api.store.objects.get(key)
                meta = evolve(found.metadata, annotations={"n": str(n)}, resource_version="")
                await api.store.objects.update(evolve(found, metadata=meta), "spec")
            seen = []
            while "199" not in seen:
                line = (await answer.content.readline()).strip()
                seen += [json.loads(line)["object"]["metadata"]["annotations"]["n"]] if line else []
        assert seen == sorted(seen, key=int)
        assert len(seen) < 150


async def _happened(api: Api, n: int) -> None:
    await api.store.objects.create(make.event(f"e{n}", at=time.time()))


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", "\u2009")
