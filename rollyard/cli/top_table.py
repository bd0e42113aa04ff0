"""The tables of `rollyard top` as lines of text. The endpoints of a pool follow the pool's line."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.cli.output import GAP, align, widths
from rollyard.kinds.endpoint_metrics import EndpointMetrics
from rollyard.kinds.inference_pool import EndpointStatus
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.top import InferencePoolTop, PoolTop, RolloutPoolTop, TopView

SERVING = [
    "INFERENCE POOL", "READY", "SESSIONS", "RUNNING", "WAITING", "KV USE", "TOKENS/S", "PROMPT/S", "HITS",
    "FIRST TOKEN", "PREEMPT/S", "WEIGHTS", "REASON",
]  # fmt: skip
RUNNING = [
    "ROLLOUT POOL",
    "READY",
    "QUEUED",
    *(stage.value for stage in Stage),
    "WARM",
    "DONE/MIN",
    "FAILED/MIN",
    "REASON",
]
OPTIONAL_COLUMNS = [
    "WARM",
    "PREEMPT/S",
    "PROMPT/S",
    "HITS",
    "FAILED/MIN",
    "FIRST TOKEN",
    "KV USE",
    "WAITING",
    "RUNNING",
    "WEIGHTS",
]
"""Columns to leave out on a narrow terminal, in this order."""
REASON_LENGTH = 24
"""In a table that is too wide, the last column is first shortened, but not below this width. If the table is still too
wide, optional columns are left out. If it is too wide even then, the last column is shortened further."""
DONE, FAILED = (Status.COMPLETED, Status.TRUNCATED), (Status.FAILED, Status.INFRA_FAILED)
VERSION_LENGTH = 12
"""Number of characters of a version that are shown; enough to distinguish two checksums."""
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    style: str = ""


def lines(top: TopView, height: int | None = None, width: int | None = None) -> list[Line]:
    """Return the lines for these pools; none if there are no pools.

    `height`, `width`: size of the terminal in characters. Endpoints and columns that do not fit are left out; the lines
    give the number of these endpoints and the names of these columns.
    """
    serving, running = top.inference_pools, top.rollout_pools
    spaces = len({pool.namespace for pool in (*serving, *running)}) > 1
    found: list[Line] = []
    if serving:
        left = (
            height if height is None or width is None else height - 3
        )  # room for the lines that name missing columns: two below the first table, one below the second
        found += _inference_lines(serving, _endpoint_rows(serving, running, left), spaces, width)
    if running:
        found += [Line("")] if found else []
        found += _style_rows([RUNNING, *(_rollout_lines(pool, spaces) for pool in running)], [""] * len(running), width)
    return found


def _endpoint_rows(
    serving: Sequence[InferencePoolTop], running: Sequence[RolloutPoolTop], height: int | None
) -> int | None:
    """Return the greatest number of endpoint lines for each pool; None if all endpoints fit."""
    rest = 1 + len(serving) + (2 + len(running) if running else 0)
    if height is None or rest + sum(len(pool.endpoints) for pool in serving) <= height:
        return None
    return max(1, (height - rest) // len(serving))


def _inference_lines(
    pools: Sequence[InferencePoolTop], room: int | None, spaces: bool, width: int | None
) -> list[Line]:
    rows, styles = [SERVING], list[str]()
    for pool in pools:
        rows.append(_pool(pool, spaces))
        shown = _most_relevant(pool.endpoints, room)
        rows += [_endpoint(endpoint, pool) for endpoint in shown]
        styles += ["", *("" if endpoint.ready else "red" for endpoint in shown)]
        if left := len(pool.endpoints) - len(shown):
            rows.append([f"  and {left} more", *[""] * (len(SERVING) - 1)])
            styles.append("dim")
    return _style_rows(rows, styles, width)


def _most_relevant(endpoints: Sequence[EndpointStatus], room: int | None) -> Sequence[EndpointStatus]:
    """Return all endpoints if they fit. Otherwise return `room - 1` of them: first those that are not ready, then those
    with the greatest number of sessions."""
    if room is None or len(endpoints) <= room:
        return endpoints
    return sorted(endpoints, key=lambda e: (e.ready, -e.sessions, e.id))[: room - 1]


def _style_rows(rows: Sequence[Sequence[str]], styles: Sequence[str], width: int | None) -> list[Line]:
    fitting, left_out = _fit_columns(rows, width)
    found = [Line(text, style) for text, style in zip(align(fitting), ["bold", *styles], strict=True)]
    if left_out:
        note = f"the terminal's {width} columns leave no room for {', '.join(left_out)}"
        found += [Line(f"  {line}", "dim") for line in textwrap.wrap(note, max((width or 0) - 2, 20))]
    return found


def _fit_columns(rows: Sequence[Sequence[str]], width: int | None) -> tuple[Sequence[Sequence[str]], list[str]]:
    """Return the rows without the columns that do not fit, and the names of these columns. The last column is shortened
    to fit."""
    if width is None:
        return rows, []
    header, left_out = rows[0], list[str]()
    for name in ["", *OPTIONAL_COLUMNS]:
        left_out += [name] if name in header else []
        keep = [i for i, column in enumerate(header) if column not in left_out]
        rows = [[row[i] for i in keep] for row in rows]
        header = rows[0]
        *others, reason = widths(rows)
        room = width - sum(other + len(GAP) for other in others)
        if room >= min(REASON_LENGTH, reason):
            break
    return [[*row[:-1], _truncate(row[-1], max(room, 1))] for row in rows], left_out


def _truncate(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _pool(pool: InferencePoolTop, spaces: bool) -> list[str]:
    versions = ",".join(version[:VERSION_LENGTH] for version in pool.weights_versions)
    ready = f"{pool.replicas.ready}/{pool.replicas.desired}"
    return [_name(pool, spaces), ready, str(pool.sessions), *_metric_cells(pool.load), versions or UNKNOWN, pool.reason]


def _endpoint(endpoint: EndpointStatus, pool: InferencePoolTop) -> list[str]:
    name = endpoint.id.removeprefix(f"{pool.namespace}/").removeprefix(f"{pool.name}/")
    version = endpoint.weights_version[:VERSION_LENGTH] or UNKNOWN
    ready = "yes" if endpoint.ready else "no"
    return [f"  {name}", ready, str(endpoint.sessions), *_metric_cells(endpoint), version, endpoint.reason]


def _metric_cells(metrics: EndpointMetrics) -> list[str]:
    return [
        UNKNOWN if metrics.running is None else str(metrics.running),
        UNKNOWN if metrics.waiting is None else str(metrics.waiting),
        _percent(metrics.kv_usage),
        _number(metrics.tokens_per_second),
        _number(metrics.prompt_tokens_per_second),
        _percent(metrics.prefix_hit_rate),
        _duration(metrics.first_token_seconds),
        _number(metrics.preemptions_per_second),
    ]


def _rollout_lines(pool: RolloutPoolTop, spaces: bool) -> list[str]:
    queued = sum(stage.queued for stage in pool.stages.values())
    stages = [pool.stages.get(stage.value) for stage in Stage]
    widths = [stage.text if stage is not None else "0/0" for stage in stages]
    ready = f"{pool.replicas.ready}/{pool.replicas.desired}"
    paces = [_ended_per_minute_cells(pool, DONE), _ended_per_minute_cells(pool, FAILED)]
    return [_name(pool, spaces), ready, str(queued), *widths, _percent(_warm_share(pool)), *paces, pool.reason]


def _warm_share(pool: RolloutPoolTop) -> float | None:
    claimed = pool.sandboxes.warm + pool.sandboxes.cold
    return pool.sandboxes.warm / claimed if claimed else None


def _ended_per_minute_cells(pool: RolloutPoolTop, statuses: Sequence[Status]) -> str:
    ended = pool.ended_per_minute
    return UNKNOWN if ended is None else _number(sum(ended.get(status.value, 0.0) for status in statuses))


def _name(pool: PoolTop, spaces: bool) -> str:
    return f"{pool.namespace}/{pool.name}" if spaces else pool.name


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return f"{1000 * seconds:.0f}ms" if seconds < 1 else f"{seconds:.3g}s"
