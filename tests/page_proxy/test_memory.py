"""Memory of a page: earlier drawings are freed, however long it is open."""

from __future__ import annotations

import pytest

from tests.support.browser import Tab

pytestmark = pytest.mark.asyncio(loop_scope="package")

DRAWINGS = 100
DRAW = f"""import('/ui/view.js').then(async ({{ html, memo, render, useState }}) => {{
  const Kept = memo(({{ row }}) => html`<p>${{row.text}}</p>`);
  const rows = [0, 1, 2].map((n) => ({{ text: `row ${{n}}` }}));
  window.drawings = [];
  let again;
  function View() {{
    const [n, draw] = useState(0);
    again = () => draw(n + 1);
    rows[n % rows.length] = {{ text: `drawing ${{n}}` }};
    const list = rows.map((row, i) => html`<${{Kept}} key=${{i}} row=${{row}} />`);
    const drawing = html`<section><h2>No variables</h2>${{list}}</section>`;
    drawings.push(new WeakRef(drawing));
    return html`<div>${{drawing}}<figure><span><i>none</i>a legend</span></figure></div>`;
  }}
  render(html`<${{View}} />`, document.body.appendChild(document.createElement('div')));
  for (let n = 1; n < {DRAWINGS}; n += 1) {{
    again();
    await new Promise((done) => setTimeout(done));
  }}
}})"""


async def test_earlier_drawings_are_freed(opened: tuple[Tab, str]) -> None:
    tab, _ = opened
    await tab.evaluate(DRAW)
    assert await tab.evaluate("drawings.length") == DRAWINGS
    await tab.call("HeapProfiler.collectGarbage")
    assert await tab.evaluate("drawings.filter((one) => one.deref()).length") <= 5
