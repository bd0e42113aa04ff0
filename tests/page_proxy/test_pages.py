"""The page in a real browser, on a recorded training and on rollouts full of hostile texts. The pages are found by the links
of the page itself, so a new view is looked at without a change here."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
import zstandard

from rollyard.client.kubeconfig import load_context
from rollyard.kinds.base import ObjectMeta
from rollyard.kinds.event import Event, InvolvedObject
from rollyard.kinds.registry import parse_object
from rollyard.kinds.rollout import RolloutError, RolloutRequest, Stage, Status
from rollyard.page_proxy.recording import RECORDING, RecordedLine, read, restore
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from rollyard.trajectory import Outcome, Segment, Turn
from rollyard.trajectory.columns import encode
from tests.page_proxy.conftest import KEPT, READY, RunningProxy, start
from tests.page_proxy.payloads import IN_ONE, PAYLOADS, TEXTS, hostile_text
from tests.support import make
from tests.support.browser import Browser, Tab
from tests.support.yard import Yard, end

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.heavy]
NAMESPACE = "hostile"
LINKS = "[...document.querySelectorAll('a[href^=\"#/\"]')].map(link => link.getAttribute('href'))"
BUTTONS = "[...document.querySelectorAll('main button, main summary')]"
MOST_BUTTONS = 12
OUTSIDE = (
    "a[href]:not([href^='#']), iframe, object, embed, form[action], base, img[src^='http'], main script, main style"
)
"""Elements of which the page has none."""


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def hostile_yard(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> AsyncIterator[Yard]:
    """A server with a part of the recorded training, and with rollouts whose every text is hostile."""
    made = Yard(tmp_path_factory.mktemp("yard"))
    lines, began = read(RECORDING, made.folder / "model")
    await restore(
        [line for line in lines if line.table != "rollout" or KEPT.fullmatch(line.record["id"])], began, made.data
    )
    await add_hostile(made, [line for line in lines if line.table == "object"])
    made.start()
    yield made
    await end(made)


async def add_hostile(yard: Yard, objects: list[RecordedLine]) -> None:
    store = await Store.open(yard.data)
    try:
        for number, line in enumerate(one for one in objects if one.record["kind"] != "Event"):
            meta = {
                "name": line.record["metadata"]["name"],
                "namespace": NAMESPACE,
                "annotations": {"a": hostile_text(number)},
            }
            spec = line.record["spec"] | {"suspend": True}
            if "model" in spec:
                spec["model"] |= {"servedName": hostile_text(1)}
            spec["allocation"] |= {"setup": hostile_text(2), "env": {"A": hostile_text(3)}}
            await store.objects.create(parse_object({**line.record, "metadata": meta, "spec": spec}))
        for number in range(TEXTS):
            await store.objects.create(hostile_event(number))
        await store.rollouts.transact(put_hostile)
    finally:
        await store.close()


def hostile_event(number: int) -> Event:
    return Event(
        metadata=ObjectMeta(name=f"e-{number}", namespace=NAMESPACE),
        involved_object=InvolvedObject(kind="RolloutPool", namespace=NAMESPACE, name="train"),
        type="Warning",
        reason=hostile_text(number),
        message=hostile_text(number + 1),
        count=1,
        first_timestamp=datetime.now(UTC),
        last_timestamp=datetime.now(UTC),
    )


def put_hostile(tx: Transaction) -> None:
    now = time.time()
    for number in range(TEXTS):
        text = hostile_text(number)
        failed = number % 2 == 1
        error = RolloutError(stage=Stage.RUN, reason=text, message=hostile_text(number + 1)) if failed else None
        outcome = Outcome(
            status=Status.FAILED if failed else Status.COMPLETED,
            reward=None if failed else 0.5,
            parts={text: 0.5},
            metrics={text: 1.0},
            notes=[text],
            segments=[
                Segment(
                    token_ids=[1, 2],
                    loss_mask=[0, 1],
                    logprobs=[None, -0.5],
                    weights_version=[None, text],
                    prompt_length=1,
                )
            ],
            turns=[turn(hostile_text(number + i)) for i in range(2)],
            breaks={text: 1},
            endpoint=text,
            node=text,
            error=error,
            harness_output=text,
            cut_short=text,
        )
        task = {"kind": "math", "problem": text, "answer": text, "metadata": {"name": text}}
        request = RolloutRequest.model_validate({"id": f"h-{number}", "pool": "train", "task": task})
        history = [[now - 5, "Leased", 1, "INIT", {"node": text, "endpoint": text, "reason": text}]]
        tx.put(
            make.rollout(
                f"h-{number}", namespace=NAMESPACE, pool="train", request=request.model_dump_json(), stage=Stage.EVAL,
                group="g" if number < 4 else text, sample_index=number, status=outcome.status, reward=outcome.reward,
                error=error, node=text, endpoints={"policy": text, text: text}, weights_version=text, image=text,
                sampled_by=(text,), finished_at=now, created_at=now - 9,
                summary={"turns": 3, "tokens": 6, "notes": [text], "parts": {text: 0.5}, "metrics": {text: 1.0}},
                metadata={"difficulty": text, text: 1},
                result=tx.add_blob(zstandard.compress(encode([outcome]))),
                history="".join(json.dumps(line) + "\n" for line in history),
            )
        )  # fmt: skip


def turn(text: str) -> Turn:
    return Turn(
        segment=0, prompt_length=1, response_length=1, text=text, finish_reason=text, tool_results=[text, text],
        tool_calls=[{"name": text, "arguments": {text: text}}, {"name": text, "arguments": text}], observation=text,
        constraint=text, timings={text: 1.0},
    )  # fmt: skip


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def opened(hostile_yard: Yard, browser: Browser) -> AsyncIterator[tuple[RunningProxy, Browser]]:
    async with AsyncExitStack() as stack:
        proxy = await start(load_context(hostile_yard.data / "admin.kubeconfig"), stack)
        yield proxy, browser


async def sign_in(proxy: RunningProxy, browser: Browser) -> Tab:
    await proxy.get("/ui/")  # without a usable code the terminal gets a new one
    tab = await browser.tab(proxy.address)
    await tab.until(READY)
    return tab


async def tour(tab: Tab, page: str, first: str, look: Callable[[str], Awaitable[None]]) -> list[str]:
    """Open one address of each form that the page links to, beginning with `first`. Return the addresses."""
    left, forms, seen = [first], {form(first)}, list[str]()
    while left:
        address = left.pop(0)
        seen.append(address)
        await tab.go(page + address)
        await tab.until(READY)
        await tab.settle(0.3)
        await look(address)
        for link in await tab.evaluate(LINKS):
            if form(link) not in forms:
                forms.add(form(link))
                left.append(link)
    return seen


def form(address: str) -> tuple[Any, ...]:
    """Addresses of one form lead to one view, with another object."""
    path, _, query = address.partition("?")
    words = path.split("/")
    fields = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
    return words[1], len(words), fields.get("view"), fields.get("ns"), frozenset(fields)


async def test_every_view_is_free_of_faults_while_the_server_restarts(
    opened: tuple[RunningProxy, Browser], hostile_yard: Yard
) -> None:
    proxy, browser = opened
    tab = await sign_in(proxy, browser)
    found: list[str] = []
    checked: set[tuple[Any, ...]] = set()
    dark = False

    async def look(address: str) -> None:
        nonlocal dark
        dark = not dark
        await tab.look(dark=dark)
        if (view := form(address)[:3]) not in checked:  # another filter of a view costs much and shows little
            checked.add(view)
            found.extend(f"{address}: {fault}" for fault in await tab.axe())
        await tab.look(width=390, height=844, dark=not dark)
        if await tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"{address}: wider than a telephone")
        await tab.look()
        for number in range(min(MOST_BUTTONS, await tab.evaluate(f"{BUTTONS}.length"))):
            await tab.evaluate(f"{BUTTONS}[{number}]?.click()")
        await tab.settle(0.2)
        found.extend(f"{address}: {fault}" for fault in tab.faults)
        tab.faults.clear()

    views = await tour(tab, proxy.page, "#/overview", look)
    assert found == []
    assert {"#/overview", "#/rollouts", "#/trainings/tasks"} <= set(views)
    assert len(views) > 8, views

    await tab.go(proxy.page + "#/rollouts")
    await tab.until(READY)
    await tab.settle(0.3)
    before = await tab.evaluate("document.querySelector('main').textContent")
    hostile_yard.kill()
    try:
        await tab.until("document.querySelector('[role=status]').textContent.includes('not connected')")
        assert await tab.evaluate("document.querySelector('main').textContent") == before, "it stays in sight"
        await tab.go(proxy.page + "#/trainings/tasks")
        await tab.until("document.querySelector('main').textContent.includes('Not known: ')")
        assert await tab.evaluate("document.querySelectorAll('.problem').length") == 1, "the reason is there once"
    finally:
        hostile_yard.start_elsewhere()
    await tab.until(READY)
    await tab.until("document.querySelectorAll('main .chart svg[role=img]').length > 5")
    assert not [fault for fault in tab.faults if "503" not in fault and "INCOMPLETE_CHUNKED" not in fault]


async def test_hostile_texts_are_shown_and_run_nothing(opened: tuple[RunningProxy, Browser]) -> None:
    proxy, browser = opened
    tab = await sign_in(proxy, browser)
    shown: set[int] = set()

    async def look(address: str) -> None:
        for number in range(min(MOST_BUTTONS, await tab.evaluate(f"{BUTTONS}.length"))):
            await tab.evaluate(f"{BUTTONS}[{number}]?.click()")
        await tab.settle(0.2)
        shown.update(int(number) for number in re.findall(r"⟦(\d+)⟧", await tab.evaluate("document.body.textContent")))
        assert await tab.evaluate("window.injected === undefined && !document.querySelector('#injected, .injected')"), (
            address
        )
        assert await tab.evaluate(f"document.querySelectorAll(`{OUTSIDE}`).length") == 0, address
        assert tab.dialogs == [], address
        assert tab.faults == [], address

    await tour(tab, proxy.page, f"#/overview?ns={NAMESPACE}", look)
    for number in range(TEXTS):
        for view in ("", "&view=task", "&view=history", "&view=tokens") if number % 8 == 0 else ("",):
            await tab.go(f"{proxy.page}#/rollouts/h-{number}?ns={NAMESPACE}{view}")
            await tab.until(f"document.querySelector('main').textContent.includes('⟦{IN_ONE * number}⟧')")
            await look(f"h-{number}{view}")
    assert set(range(len(PAYLOADS))) <= shown
    outside = [url for url in tab.requested if not url.startswith((f"http://{proxy.host}/", "data:"))]
    assert outside == []

    # the browser would have told: the same texts as HTML
    await tab.evaluate(
        f"document.body.insertAdjacentHTML('beforeend', {json.dumps(''.join(map(hostile_text, range(10))))})"
    )
    await tab.until("document.querySelectorAll('body img').length > 0")
    await tab.settle(0.3)
    assert any("Content Security Policy" in fault for fault in tab.faults)
    assert tab.dialogs == [], "the content security policy stops what the page would have let through"
