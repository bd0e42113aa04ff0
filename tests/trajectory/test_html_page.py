"""The HTML file of a trajectory: nothing in it runs or is requested, and everything is shown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rollyard.trajectory import Segment, Trajectory, Turn
from rollyard.trajectory.html_page import ShownTokens, html_page
from tests.support.browser import chromium
from tests.wire.samples import OUTCOME

MARKS = ("<script>hit()</script>", "<img src=x onerror=hit()>", "<svg onload=hit()>", "<iframe src=javascript:hit()>")
WRAPS = (
    "{}",
    '">{}',
    "'>{}",
    "</pre>{}",
    "</title>{}",
    "</style>{}",
    "</details>{}",
    "-->{}",
    "]]>{}",
    "\x00{}",
    "\u202e{}",
)
OTHERS = (
    "<base href=http://x/>", "<meta http-equiv=refresh content=0;url=http://x/>", "<link rel=stylesheet href=http://x/>",
    "javascript:hit()", '" onmouseover="hit()', "' autofocus onfocus='hit()", "&lt;script&gt;hit()&lt;/script&gt;",
    "&#60;script&#62;hit()&#60;/script&#62;", "<ScRiPt>hit()</sCrIpT>", "<a href=javascript:hit()>x</a>",
    "<form action=javascript:hit()><button>x", "<style>@import 'http://x/';</style>", "<object data=http://x/>",
    "<body onload=hit()>", "<video><source onerror=hit()>", "<math><mi xlink:href=javascript:hit()>x", "\ud800<script>",
)  # fmt: skip
PAYLOADS = [wrap.format(mark) for wrap in WRAPS for mark in MARKS] + list(OTHERS)
TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "section", "dl", "dt", "dd", "details", "summary",
    "pre", "div", "span",
}  # fmt: skip


def hostile() -> tuple[Trajectory, ShownTokens]:
    """A trajectory with payloads in every text."""
    every = " ".join(PAYLOADS).replace("\ud800", "")
    turns = [
        Turn(
            segment=0, prompt_length=1, response_length=1, text=payload, finish_reason=payload, constraint=payload,
            tool_calls=[{"name": payload, "arguments": {payload: payload}}], tool_results=[payload], observation=payload,
        )
        for payload in PAYLOADS
    ]  # fmt: skip
    ids = list(range(len(PAYLOADS)))
    segment = Segment(
        token_ids=ids, loss_mask=[i % 2 for i in ids], logprobs=[-i / 9 if i % 2 else None for i in ids],
        weights_version=[every if i % 2 else None for i in ids], prompt_length=1,
    )  # fmt: skip
    fields = {**OUTCOME.model_dump(), "segments": [segment], "turns": turns, "notes": PAYLOADS, "harness_output": every}
    fields |= {"endpoint": every, "node": every, "metrics": {every: 1.0}}
    made = Trajectory(
        id=every, group=every, sample_index=0, attempt=1, task={"kind": "math", "problem": every}, **fields
    )
    return made, ShownTokens(dict(enumerate(PAYLOADS)))


class Read(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str, str | None]] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(tag, name, value) for name, value in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_payloads_become_text_and_the_policy_forbids_everything_else() -> None:
    assert len(PAYLOADS) >= 60
    trajectory, known = hostile()
    read = Read()
    read.feed(html_page([trajectory, trajectory], known))
    assert read.tags <= TAGS
    policy = next(
        value for tag, name, value in read.attributes if (tag, name) == ("meta", "content") and "default" in value
    )
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    plain = {(tag, name) for tag, name, _ in read.attributes if tag not in ("meta", "html")}
    assert plain <= {("pre", "class"), ("div", "class"), ("span", "class")}
    assert {value for _, name, value in read.attributes if name == "class"} <= {
        "result",
        "tokens",
        "given",
        *["p0", "p1", "p2", "p3", "p4"],
    }
    for payload in PAYLOADS:
        if payload.isprintable():
            assert payload in read.text
    assert "\u202e" not in read.text


def test_tokens_have_the_class_of_their_probability_and_characters_are_put_together() -> None:
    segment = Segment(
        token_ids=[1, 2, 3, 4, 5, 6], loss_mask=[0, 1, 1, 1, 1, 1], prompt_length=1,
        logprobs=[None, -0.01, -0.01, -0.5, -5.0, -5.0], weights_version=[None, *["v1"] * 5],
    )  # fmt: skip
    fields = {**OUTCOME.model_dump(), "segments": [segment], "turns": []}
    made = Trajectory(id="r", group=None, sample_index=0, attempt=1, task={"kind": "math"}, **fields)
    known = ShownTokens({1: "a<", 4: "d"}, {2: "é".encode()[:1], 3: "é".encode()[1:]})
    spans = re.findall(r'<span class="(\w+)">([^<]*)</span>', html_page([made], known))
    assert spans == [("given", "a&lt;"), ("p0", "é"), ("p1", "d"), ("p4", "⟨5⟩⟨6⟩")]


def test_a_group_has_its_name_and_each_rollout_once() -> None:
    made = [
        Trajectory(id=f"g.{i}", group="g", sample_index=i, attempt=1, task={"kind": "math"}, **OUTCOME.model_dump())
        for i in range(3)
    ]
    page = html_page(made, ShownTokens())
    assert "<title>group g</title>" in page
    assert re.findall(r"<h2>([^<]*)</h2>", page) == ["g.0", "g.1", "g.2"]


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_a_browser_runs_and_requests_nothing_and_a_phone_needs_no_sideways_scroll(
    tmp_path: Path, dark: bool
) -> None:
    trajectory, known = hostile()
    file = tmp_path / "rollout.html"
    file.write_text(html_page([trajectory], known))
    async with chromium() as browser:
        tab = await browser.tab("about:blank", width=390, height=800, dark=dark)
        await tab.go(file.as_uri())
        await tab.until("document.readyState === 'complete'")
        await tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        await tab.settle()
        assert tab.dialogs == []
        assert [url for url in tab.requested if not url.startswith(("about:", file.as_uri()))] == []
        assert await tab.evaluate("document.scripts.length") == 0
        assert await tab.evaluate("document.documentElement.scrollWidth <= 390")
        ground = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(22, 22, 22)" if dark else "rgb(255, 255, 255)")
        assert await tab.axe() == []
