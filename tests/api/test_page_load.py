"""The page under load: what it holds, draws and asks for does not grow with what changes or with what is stored."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest

from rollyard.kinds.base import ObjectKey, evolve
from rollyard.kinds.rollout import Status
from rollyard.trajectory import Outcome, Segment, Turn
from tests.api.test_page import _end, opened
from tests.api.test_rollouts_waiting import change, pool, submit
from tests.support import make
from tests.support.outside_api import Api, Serve
from tests.support.token_canvas import DRAWN, LINE, NUMBERS, ROW, gap, places, point, press

pytestmark = pytest.mark.heavy
TOKENS, TURNS = 60_000, 100
EVENTS_KEPT = 1000
BOX = "document.querySelector('.tokens')"
FRAMES = "new Promise(done => { let n = 10; const next = () => n-- ? requestAnimationFrame(next) : done(); next(); })"
"""Ten frames of the page."""


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
            await page.show("#/rollouts/long?view=tokens&turn=90", f"{DRAWN} && {BOX}.scrollTop > 0")
            turn_90 = 89 * TOKENS // TURNS + TOKENS // TURNS // 2
            await tab.until(f"{LINE}.includes('Index {_spaced(turn_90)} of')")
            x, y = (await places(tab, "sampled"))[0]

            # a mouse that rests does not choose the tokens that move below it
            await point(tab, x, y)
            for key, token in (("End", TOKENS - 1), ("Home", 0)):
                said = await press(tab, key, control=True)
                assert f"Index {_spaced(token)} of" in said
                await tab.evaluate(FRAMES)
                assert await tab.evaluate(LINE) == said
            seen: list[int] = []
            for share in (0.25, 0.5, 0.75, 1.0):
                await tab.evaluate(f"{BOX}.scrollTop = {BOX}.scrollHeight * {share}")
                await tab.evaluate(FRAMES)
                said = await tab.evaluate(LINE)
                await point(tab, x, y + len(seen))
                await tab.until(f"{LINE} !== {json.dumps(said)}")
                seen.append(int("".join(re.findall(r"\d", (await tab.evaluate(LINE)).partition(" of ")[0]))))
            assert seen == pytest.approx([TOKENS * share for share in (0.25, 0.5, 0.75, 1.0)], abs=TOKENS // 10)
            assert await tab.evaluate(f"{BOX}.querySelectorAll('*').length") == 2, (
                "a canvas in a box of all rows' height"
            )

            # no frame of the window lacks a row, however fast one scrolls
            numbers = await tab.evaluate(NUMBERS)
            async with tab.filmed() as film:
                for way in (20_000, -20_000):
                    await tab.call(
                        "Input.synthesizeScrollGesture",
                        x=x,
                        y=y,
                        yDistance=way,
                        speed=20_000,
                        gestureSourceType="mouse",
                    )
            assert len(film) > 10
            assert max(gap(frame, *numbers) for frame in film) <= ROW

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
