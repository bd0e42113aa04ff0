"""The order of what a view shows, in whatever order the answers arrive."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page_proxy.conftest import READY
from tests.support.browser import Tab

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.heavy]

LATE = """(() => {
  const [STEP_MS, AT_ONCE] = [60, 6];
  const ask = window.fetch;
  let asked = 0;
  window.fetch = async (...given) => {
    const answer = await ask(...given);
    if (window.late && !String(given[0]).includes('/v1/changes')) {
      await new Promise((done) => setTimeout(done, STEP_MS * (AT_ONCE - asked++ % AT_ONCE)));
    }
    return answer;
  };
})()"""
"""Script after which the first of six questions is answered last, if `late` is true."""
OUTLINE = """[...document.querySelectorAll('main :is(h1, h2, h3, nav, figure, table, .facts, .turns, form)')].map((one) =>
  one.matches('h1, h2, h3') ? one.textContent : one.caption?.textContent || one.className || one.tagName).join(' | ')"""
READING = "/Reading [^.]* …/.test(document.querySelector('main').textContent)"
VIEWS = ("overview", "pools/RolloutPool/train", "trainings/tasks", "rollouts/tasks-g0.0")


async def outline(tab: Tab, view: str, *, late: bool) -> str:
    """Open a view from elsewhere, and return the order of its parts once all are there."""
    await tab.evaluate(f"window.late = {str(late).lower()}; location.hash = '#/nowhere'")
    await tab.until("document.querySelector('h1')?.textContent === 'There is no such view'")
    await tab.evaluate(f"location.hash = '#/{view}'")
    await tab.until(f"document.querySelector('h1')?.textContent !== 'There is no such view' && !{READING}")
    await tab.settle(0.3)
    return str(await tab.evaluate(OUTLINE))


async def test_a_view_has_one_order_in_whatever_order_its_answers_arrive(opened: tuple[Tab, str]) -> None:
    tab, page = opened
    await tab.call("Page.addScriptToEvaluateOnNewDocument", source=LATE)
    await tab.go("about:blank")
    await tab.go(page)
    await tab.until(READY)
    for view in VIEWS:
        at_once = await outline(tab, view, late=False)
        assert at_once.count(" | ") > 1, at_once
        assert await outline(tab, view, late=True) == at_once


async def test_what_a_component_shows_later_stands_before_what_follows_it(opened: tuple[Tab, str]) -> None:
    """Preact 10 put it behind: a component took the place of an element, and the next one showed less than before."""
    tab, _ = opened
    script = """import('/ui/view.js').then(async ({ html, render, useState }) => {
      let change;
      const part = (text) => text && html`<p>${text}</p>`;
      const Parts = ({ of: [a, b, c] }) => html`${part(a)}${part(b)}${part(c)}`;
      const Both = () => {
        const [answered, set] = useState(false);
        change = () => set((before) => !before);
        const first = answered ? html`<${Parts} of=${['1']} />` : part('Reading');
        return html`${first}<${Parts} of=${answered ? [null, '2', '3'] : ['a', 'b', 'c']} />`;
      };
      const into = document.createElement('div');
      render(html`<div><${Both} /><p>4</p></div>`, into);
      const seen = [];
      for (let time = 0; time < 4; time += 1) {
        change();
        await new Promise((done) => setTimeout(done));
        seen.push(into.textContent);
      }
      return seen;
    })"""
    seen: list[Any] = await tab.evaluate(script)
    assert seen == ["1234", "Readingabc4"] * 2
