"""The page by keyboard alone, and as a reader of screens gets it: Chromium's own accessibility tree."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.kinds.base import ObjectKey
from tests.page_proxy.conftest import READY
from tests.support.browser import Tab
from tests.support.until import until
from tests.support.yard import Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.heavy]
CONTROLS = {
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "radio",
    "slider",
    "tab",
    "DisclosureTriangle",
}
"""Roles in Chromium's accessibility tree of what a person operates."""
NAMED = CONTROLS | {"table", "image", "region", "navigation", "form", "search"}
"""Roles of what has to have a name: also what a person reads or jumps to."""
SKIPPED = """(() => {
  const all = [...document.querySelectorAll('h1, h2, h3, h4, h5')];
  const level = (i) => (i < 0 ? 0 : Number(all[i].tagName[1]));
  return all.filter((_, i) => level(i) > level(i - 1) + 1).map((one) => one.outerHTML.slice(0, 80));
})()"""
"""Headings that are more than one level below the heading before them."""
MOST_STOPS = 400
FOCUSED = """(() => {
  const one = document.activeElement;
  const box = one.getBoundingClientRect();
  return {
    tag: one.tagName, id: one.id, text: one.textContent.trim().slice(0, 60), href: one.getAttribute('href'),
    seen: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
  };
})()"""
KEYS = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "ArrowRight": ("ArrowRight", 39, "")}
POOL = ObjectKey(kind="RolloutPool", namespace="default", name="train")


async def press(tab: Tab, name: str) -> None:
    key, code, text = KEYS[name]
    about = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
    for type in ("keyDown", "keyUp"):
        await tab.call("Input.dispatchKeyEvent", type=type, **(about if type == "keyDown" else {**about, "text": ""}))


async def tab_to(tab: Tab, wanted: str) -> dict[str, Any]:
    """Press Tab until an element has the focus for which the script `wanted` of `one` is true."""
    for _ in range(MOST_STOPS):
        await press(tab, "Tab")
        if await tab.evaluate(f"(one => {wanted})(document.activeElement)"):
            return dict(await tab.evaluate(FOCUSED))
    raise AssertionError(f"no stop of the Tab key is {wanted}")


async def unclear(tab: Tab) -> list[str]:
    """Return what has no name in the accessibility tree, and headings that skip a level."""
    nodes = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
    found = [n for n in nodes if not n.get("ignored") and n.get("role", {}).get("value") in NAMED]
    assert found
    unnamed = [n for n in found if not n.get("name", {}).get("value", "").strip()]
    return [f"{n['role']['value']} {n.get('nodeId')}" for n in unnamed] + list(await tab.evaluate(SKIPPED))


async def test_each_view_is_reached_and_walked_through_by_the_tab_key(opened: tuple[Tab, str]) -> None:
    tab, page = opened
    await tab.go(page)
    await tab.until(READY)
    await press(tab, "Tab")
    assert (await tab.evaluate(FOCUSED))["text"] == "To the content", "the first stop leads past the navigation"
    await press(tab, "Enter")
    assert (await tab.evaluate(FOCUSED))["id"] == "main"

    views = await tab.evaluate("[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))")
    assert len(views) > 6
    for view in views:
        await tab.evaluate("document.querySelector('a.skip').focus()")
        await tab_to(tab, f"one.getAttribute('href') === '{view}'")
        await press(tab, "Enter")
        await tab.until(f"location.hash === '{view}' && document.activeElement.id === 'main'")
        await tab.settle(0.3)
        assert await unclear(tab) == [], view
        stops: list[dict[str, Any]] = []
        while True:  # a trap would hold the focus for ever
            await press(tab, "Tab")
            stop = await tab.evaluate(FOCUSED)
            if stop["tag"] == "BODY" or (stop["text"] == "To the content" and stops):
                break
            stops.append(stop)
            assert stop["seen"], f"{view}: the focus is out of sight on {stop}"
            assert len(stops) < MOST_STOPS, f"{view}: no end of the stops"
        assert stops or view != "#/overview"
    assert tab.faults == []


async def test_a_trajectory_is_opened_read_and_left_by_keys_and_the_focus_comes_back(opened: tuple[Tab, str]) -> None:
    tab, page = opened
    await tab.go(page + "#/rollouts")
    await tab.until("document.querySelectorAll('tbody th a').length > 3")
    await tab.evaluate("document.querySelector('#main').focus()")
    await tab_to(tab, "one.matches('tbody th a')")
    await press(tab, "Tab")
    link = await tab_to(tab, "one.matches('tbody th a')")
    await press(tab, "Enter")
    await tab.until(f"location.hash === '{link['href']}' && document.activeElement.id === 'main'")
    await tab.until("!!document.querySelector('.tabs a')")
    assert await unclear(tab) == []
    await tab_to(tab, "one.textContent === 'Tokens'")
    await press(tab, "Enter")
    await tab.until("!!document.querySelector('.tokens')")
    await tab_to(tab, "one.matches('.tokens, .tokens *')")
    await press(tab, "ArrowRight")
    await tab.until("/probability|given|sampled/i.test(document.querySelector('.token-line').textContent)")
    assert await unclear(tab) == []

    await tab.evaluate("history.go(-2)")
    await tab.until("location.hash === '#/rollouts' && document.querySelectorAll('tbody th a').length > 3")
    await tab.until(f"document.activeElement.getAttribute('href') === '{link['href']}'")


async def test_updates_move_no_focus_and_are_not_read_out(opened: tuple[Tab, str], recorded: Yard) -> None:
    tab, page = opened
    await tab.go(page + "#/pools")
    await tab.until("!!document.querySelector('tbody th a')")
    await tab.evaluate("document.querySelector('#main').focus()")
    link = await tab_to(tab, "one.matches('tbody th a')")
    await tab.evaluate(
        """window.readOut = [];
        for (const region of document.querySelectorAll('[role=status], [aria-live=polite], [role=alert]')) {
          const changed = () => readOut.push(region.textContent.trim());
          new MutationObserver(changed).observe(region, {childList: true, subtree: true, characterData: true});
        }"""
    )
    async with recorded.client() as client:
        for number in range(2, 6):
            await client.patch(POOL, {"spec": {"replicas": number}})
            await tab.until("document.querySelector('main').textContent.includes('suspended')")
        await client.patch(POOL, {"spec": {"suspend": False, "replicas": 0}})
        await tab.until("document.querySelector('main').textContent.includes('fixed 0')")
        assert (await tab.evaluate(FOCUSED))["href"] == link["href"], "the focus stays"
        assert await tab.evaluate("readOut") == [], "a flood of updates is not read out"

        recorded.kill()
        try:
            await tab.until("readOut.some(text => text.includes('not connected since'))")
        finally:
            recorded.start_elsewhere()
        await tab.until(READY)
        await until(lambda: tab.evaluate(f"document.activeElement.getAttribute('href') === '{link['href']}'"))
        assert len(set(await tab.evaluate("readOut"))) == 2, "the loss and the return of the server, each once"
        await client.patch(POOL, {"spec": {"suspend": True}})
