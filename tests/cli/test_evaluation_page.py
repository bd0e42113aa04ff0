"""The HTML files of evaluations: everything is shown, and nothing in them runs or is requested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollyard.cli.evaluation_page import comparison_page, evaluation_page
from rollyard.kinds.evaluation import EvaluatedTask, EvaluationComparison, EvaluationRequest, EvaluationView
from rollyard.kinds.rollout import Status
from rollyard.server.evaluations.evaluation_view import comparison, evaluated_tasks, view
from rollyard.store.evaluation_store import EvaluationResult, EvaluationTally, StoredEvaluation
from tests.support.browser import chromium
from tests.trajectory.test_html_page import PAYLOADS, Read

TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "section", "dl", "dt", "dd", "p", "span", "div", "table",
    "thead", "tbody", "tr", "th", "td", "svg", "path", "circle",
}  # fmt: skip
COUNT = len(PAYLOADS)


def results(gain: float) -> list[EvaluationResult]:
    """Four rollouts of a task for each payload, which its kind and its metadata have; the last task has faults alone."""
    made = []
    for number, payload in enumerate(PAYLOADS):
        text = payload.encode(errors="replace").decode()
        metadata = json.dumps({text: text, "level": number % 3})
        for run in range(4):
            fault = number == COUNT - 1
            reward = None if fault else float(run < (number % 4) + gain * (-1) ** (number % 5 == 0))
            made.append(
                EvaluationResult(
                    f"{number:016x}", f"e.{number:016x}.eval.{run}", text, metadata,
                    Status.FAILED if fault else Status.COMPLETED, text if fault else None, reward, "v1", 9.0,
                )
            )  # fmt: skip
    return made


def two(by: str | None = None) -> tuple[EvaluationView, list[EvaluatedTask], EvaluationComparison, EvaluationView]:
    stored, found, views = [], [], []
    for name, gain in (("before", 0.0), ("after", 1.0)):
        request = EvaluationRequest(
            name=name, pool="p", dataset=PAYLOADS[0], tasks=COUNT, tasks_digest="5f" * 32, k=4 if gain else 2
        )
        stored.append(StoredEvaluation("default", request, 1_700_000_000.0))
        found.append(results(gain))
        tally = EvaluationTally(
            ended=4 * COUNT, scored=4 * COUNT - 4, faults={PAYLOADS[1]: 4}, weights_versions={"v1": 9}
        )
        views.append(view(stored[-1], tally, found[-1], 1.0, by))
    compared = comparison((stored[0], found[0]), (stored[1], found[1]), 1.0)
    return views[0], evaluated_tasks(stored[0].request, found[0]), compared, views[1]


def pages() -> list[str]:
    first, tasks, compared, second = two("level")
    return [evaluation_page(first, tasks), comparison_page(compared, first, second)]


@pytest.mark.parametrize("place", [0, 1], ids=["evaluation", "comparison"])
def test_payloads_become_text(place: int) -> None:
    read = Read()
    read.feed(pages()[place])
    assert read.tags <= TAGS
    assert {name for tag, name, _ in read.attributes if tag not in ("meta", "html", "svg", "path", "circle")} <= {
        "class", "scope", "tabindex", "role", "aria-label",
    }  # fmt: skip
    assert any(
        tag == "meta" and str(value).startswith("default-src 'none'; style-src") for tag, _, value in read.attributes
    )
    changed = PAYLOADS[1:-1:4] if place else PAYLOADS
    for payload in changed:
        assert not payload.isprintable() or payload in read.text


def test_every_number_of_the_command_is_in_the_file() -> None:
    first, tasks, compared, second = two("level")
    shown = evaluation_page(first, tasks)
    mean = first.statistics.mean
    assert mean is not None
    assert f"<td>mean reward</td><td>{mean.value:.3f}</td><td>{mean.low:.3f} … {mean.high:.3f}</td>" in shown
    assert f"<h2>{COUNT} tasks, the hardest first</h2>" in shown
    assert shown.count("<svg ") == 1 + len(first.statistics.pass_at) + 1
    assert all(f"<td>{group.value}</td><td>{group.tasks}</td>" in shown for group in first.groups)
    shown = comparison_page(compared, first, second)
    assert compared.mean is not None
    assert f"<td>{compared.mean.difference:+.3f}</td>" in shown
    assert f"{len(compared.better)} are better" in shown
    assert f"<h2>{len(compared.worse)} tasks are worse</h2>" in shown
    assert "the two have different values of `k`: 2 and 4" in shown
    assert f'<td class="long">{compared.mean.conclusion}</td>' in shown
    empty = first.model_copy(
        update={"statistics": first.statistics.model_copy(update={"mean": None, "pass_at": {}, "pass_all": {}})}
    )
    assert "<h2>Metrics" not in evaluation_page(empty, [])


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_a_browser_runs_and_requests_nothing_and_a_phone_needs_no_sideways_scroll(
    tmp_path: Path, dark: bool
) -> None:
    async with chromium() as browser:
        for number, page in enumerate(pages()):
            file = tmp_path / f"{number}.html"
            file.write_text(page)
            tab = await browser.tab("about:blank", width=390, height=800, dark=dark)
            await tab.go(file.as_uri())
            await tab.until("document.readyState === 'complete'")
            assert tab.dialogs == []
            assert [url for url in tab.requested if not url.startswith(("about:", file.as_uri()))] == []
            assert await tab.evaluate("document.scripts.length") == 0
            assert await tab.evaluate("document.documentElement.scrollWidth <= 390")
            assert await tab.axe() == []
