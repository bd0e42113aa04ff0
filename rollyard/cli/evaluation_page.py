"""An evaluation, or a comparison of two, as one HTML file to send to somebody. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rollyard.cli.evaluation_tables import (
    counts_text,
    difference_cells,
    ended_text,
    estimate_cells,
    group_rows,
    hardest_first,
    metadata_text,
    metrics,
    rewards_text,
    statistics_notes,
    task_cells,
    tasks_text,
    weights_notes,
    weights_text,
)
from rollyard.core.clock import as_text
from rollyard.kinds.evaluation import EvaluatedTask, EvaluationComparison, EvaluationView, TaskChange
from rollyard.trajectory.html_document import document, escaped, facts

_STYLE = """
:root { --mark: #0b66b8; --better: #17703a; --worse: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --mark: #6cb4f2; --better: #6fce93; --worse: #ff9a91; } }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--dim); font-weight: 600; }
th, td { padding: 3px 16px 3px 0; border-bottom: 1px solid var(--line); vertical-align: middle; }
td { white-space: nowrap; } .long { white-space: normal; overflow-wrap: anywhere; min-width: 160px; }
.note { color: var(--dim); } .better { color: var(--better); } .worse { color: var(--worse); }
svg { display: block; } .axis { stroke: var(--line); } .span { stroke: var(--mark); stroke-width: 2; }
.dot { fill: var(--mark); }
"""
_WIDTH, _HEIGHT = 240, 16
"""Size of the picture of an interval, in pixels."""

Interval = tuple[float, float, float]
"""Value, low, high."""


def evaluation_page(view: EvaluationView, tasks: Sequence[EvaluatedTask]) -> str:
    """Return the file of one evaluation: its metrics, its groups if it has some, and all tasks, the hardest first."""
    request = view.request
    pairs = [
        ("state", f"{view.state.value}, {ended_text(view)}"), ("tasks", tasks_text(request)), ("rollouts", counts_text(view)),
        ("pool", request.pool), ("weights", weights_text(view)), ("begun", as_text(view.created_at)),
        ("ended", "-" if view.ended_at is None else as_text(view.ended_at)),
        ("solved", f"with a reward of at least {view.solved_at:.4g}"),
    ]  # fmt: skip
    parts = [facts(pairs), *map(_note, weights_notes(view))]
    if named := metrics(view):
        drawn = _drawn([(one.value, one.low, one.high) for _, one in named], 0.0, 1.0)
        rows = []
        for (name, one), picture in zip(named, drawn, strict=True):
            value, interval, count = estimate_cells(one)
            rows.append([escaped(name), value, interval, picture, count])
        parts.append(_section("Metrics", ["metric", "value", "95 % interval", "", "tasks"], rows))
    parts += map(_note, statistics_notes(view))
    if view.by is not None:
        head, *cells = group_rows(view.by, view.groups, request.k)
        parts.append(_section(f"By {view.by}", [one.lower() for one in head], [[*map(escaped, row)] for row in cells]))
    rows = [[*map(escaped, task_cells(task)), _long(metadata_text(task.metadata))] for task in hardest_first(tasks)]
    head = ["task", "kind", "mean reward", "rewards", "faults", "metadata"]
    parts.append(_section(f"{len(rows)} tasks, the hardest first", head, rows))
    return document(f"evaluation {request.name}", "".join(parts), _STYLE)


def comparison_page(found: EvaluationComparison, first: EvaluationView, second: EvaluationView) -> str:
    """Return the file of a comparison: the differences with their intervals, and all tasks that got better or worse."""
    of_both = [
        (one.request.name, f"{tasks_text(one.request)}, weights {weights_text(one)}, {counts_text(one)}")
        for one in (first, second)
    ]
    parts = [facts(of_both)]
    parts += [_note(f"note: {note}") for note in found.notes]
    parts.append(
        f"<p>{found.tasks} tasks have a reward in both; {found.only_first} in the first alone, {found.only_second} in the "
        f'second alone. <span class="better">{len(found.better)} are better</span> in the second, '
        f'<span class="worse">{len(found.worse)} worse</span>, {found.same} the same.</p>\n'
    )
    named = [(name, one) for name, one in (("mean reward", found.mean), ("pass@1", found.pass_1)) if one is not None]
    if named:
        drawn = _drawn([(one.difference, one.low, one.high) for _, one in named], -0.1, 0.1)
        rows = []
        for (name, one), picture in zip(named, drawn, strict=True):
            before, after, difference, interval, p_value = difference_cells(one)
            cells = [before, after, difference, interval, picture, p_value]
            rows.append([escaped(name), *cells, _long(one.conclusion)])
        head = ["metric", found.first, found.second, "difference", "95 % interval", "", "p", ""]
        parts.append(_section("Differences", head, rows))
        parts.append(
            _note("p: how often a random sign for each task's difference gives a difference at least as great")
        )
    for word, changes in (("better", found.better), ("worse", found.worse)):
        if changes:
            head = ["task", "kind", found.first, found.second, "difference", "metadata"]
            parts.append(_section(f"{len(changes)} tasks are {word}", head, [_change(word, one) for one in changes]))
    return document(f"{found.first} and {found.second}", "".join(parts), _STYLE)


def _change(word: str, change: TaskChange) -> list[str]:
    rewards = [escaped(rewards_text(one)) for one in (change.first, change.second)]
    difference = f'<span class="{word}">{change.difference:+.3f}</span>'
    return [escaped(change.task), escaped(change.kind), *rewards, difference, _long(metadata_text(change.metadata))]


def _section(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table below its title. The cells of `rows` are HTML."""
    top = "".join(f'<th scope="col">{escaped(one)}</th>' if one else "<td></td>" for one in head)
    body = "".join(f"<tr>{''.join(_cell(one) for one in row)}</tr>\n" for row in rows)
    table = f"<table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"
    label = escaped(title)
    shown = f'<div class="wide" tabindex="0" role="region" aria-label="{label}">{table}</div>'
    return f"<section>\n<h2>{label}</h2>\n{shown}\n</section>\n"


def _cell(content: str) -> str:
    return content if content.startswith("<td") else f"<td>{content}</td>"


def _long(content: str) -> str:
    return f'<td class="long">{escaped(content)}</td>'


def _note(content: str) -> str:
    return f'<p class="note">{escaped(content)}</p>\n'


def _drawn(intervals: Sequence[Interval], low: float, high: float) -> list[str]:
    """Return a picture of each interval on one axis, which goes from `low` to `high` at least, with a line at 0."""
    low, high = min(low, *(one[1] for one in intervals)), max(high, *(one[2] for one in intervals))

    def place(value: float) -> str:
        return f"{4 + (value - low) / (high - low) * (_WIDTH - 8):.1f}"

    middle = _HEIGHT // 2
    ground = f'<path class="axis" d="M{place(low)} {middle}H{place(high)}M{place(0.0)} 0V{_HEIGHT}"/>'
    return [
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{value:.3f}, from {least:.3f} to {most:.3f}, on an '
        f'axis from {low:.3g} to {high:.3g}">{ground}<path class="span" d="M{place(least)} {middle}H{place(most)}"/>'
        f'<circle class="dot" cx="{place(value)}" cy="{middle}" r="3.5"/></svg>'
        for value, least, most in intervals
    ]
