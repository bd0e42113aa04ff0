"""`rollyard top`: the current activity of the pools, once or repeatedly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.rollout_lists import MOMENT
from rollyard.cli.top_table import Line, lines
from rollyard.client.async_client import AsyncClient
from rollyard.core.aio import running
from rollyard.core.errors import NotFound, Unavailable
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout_history import LossSums
from rollyard.kinds.top import NodeTop, TopView

REFRESH_SECONDS = 2.0
"""Seconds between two refreshes on a terminal. Engines report their load at this interval."""
LEAST_SECONDS = 0.2
GROUPS = ("inference", "rollouts")
NODES = "nodes"


@click.command()
@click.argument("words", nargs=-1, metavar="[inference|rollouts|POOL]... | nodes")
@click.option(
    "-w",
    "--watch",
    "seconds",
    type=click.FloatRange(min=0),
    help="seconds between refreshes; 0: print once  [default: 2 for tables on a terminal, else 0]",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="pools of all namespaces")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="output format")
@click.option("--since", type=MOMENT, help="with nodes: a duration such as 1h, or a date (UTC)  [default: 1h]")
@with_client
async def top(
    client: AsyncClient,
    namespace: str,
    words: tuple[str, ...],
    seconds: float | None,
    all_namespaces: bool,
    form: str,
    since: float | None,
) -> None:
    """Show live metrics of pools, or (`top nodes`) times, faults and losses of nodes.

    The metrics are tokens a second, sessions, cache use, stages and rollouts a minute. Rollouts are counted over the
    last minute, other rates over the last 15 seconds. A dash stands for an unknown value. `4/8 +2` under INIT, RUN or
    EVAL: 4 of 8 stage workers are busy, and 2 rollouts on the nodes wait for one.

    `rollyard top nodes` shows on which nodes rollouts ended in the last hour, how many had faults, how long INIT and RUN
    took, the slowest first, and what was lost on each node though its rollout went on.
    """
    if words == (NODES,):
        losses = await client.losses(namespace, since=since)
        _print_nodes(await client.nodes(namespace, since=since), losses.rows, form)
        return
    if since is not None:
        raise click.UsageError(f"--since is for `rollyard top {NODES}`")
    where = None if all_namespaces else namespace

    async def poll() -> TopView:
        return select_pools(await client.top(where), words)

    live = sys.stdout.isatty() and form == "table"
    pause = (REFRESH_SECONDS if live else 0.0) if seconds is None else seconds
    empty = "No pools" + ("." if all_namespaces else f" in {namespace} namespace.")
    if live and pause:
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is the normal end
            await _follow(poll, max(pause, LEAST_SECONDS), empty)
        return
    while True:
        _print(await poll(), form, empty)
        if not pause:
            return
        await asyncio.sleep(max(pause, LEAST_SECONDS))


def select_pools(found: TopView, words: tuple[str, ...]) -> TopView:
    """Return the pools that `words` select by name or by kind (`GROUPS`). Raises NotFound for an unknown name."""
    if not words:
        return found
    names = {pool.name for pool in (*found.inference_pools, *found.rollout_pools)}
    strange = [word for word in words if word not in (*GROUPS, *names)]
    if strange:
        known = ", ".join(sorted(names)) or "no pools"
        raise NotFound(f"there is no pool {strange[0]!r}; write {' or '.join(GROUPS)}, or one of: {known}")
    update = {
        "inference_pools": [p for p in found.inference_pools if {p.name, "inference"} & set(words)],
        "rollout_pools": [p for p in found.rollout_pools if {p.name, "rollouts"} & set(words)],
    }
    return evolve(found, **update)


def _print(found: TopView, form: str, empty: str) -> None:
    if form == "json":
        click.echo(found.model_dump_json(by_alias=True, exclude_none=True))
    elif shown := lines(found, width=shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        click.echo("\n".join(line.text for line in shown))
    else:
        click.echo(empty, err=True)


def _print_nodes(ended: Sequence[NodeTop], losses: Sequence[LossSums], form: str) -> None:
    """Print also the nodes on which something was lost and no rollout ended."""
    lost = Counter[str]()
    for row in losses:
        if row.node is not None:
            lost[row.node] += row.losses
    others = lost.keys() - {node.node for node in ended}
    nodes = [
        *ended,
        *(NodeTop(node=name, rollouts=0, faults={}, init_median=None, run_median=None) for name in sorted(others)),
    ]
    if form == "json":
        click.echo(json.dumps([{**node.model_dump(mode="json"), "lost": lost[node.node]} for node in nodes]))
        return
    rows = [["NODE", "ROLLOUTS", "FAULTS", "LOST", "INIT MEDIAN", "RUN MEDIAN", "FAULTS BY REASON"]]
    for node in nodes:
        times = ["-" if one is None else f"{one:.1f}s" for one in (node.init_median, node.run_median)]
        reasons = ", ".join(f"{reason} {count}" for reason, count in node.faults.items()) or "-"
        counts = [str(count) for count in (node.rollouts, sum(node.faults.values()), lost[node.node])]
        rows.append([node.node, *counts, *times, reasons])
    click.echo("\n".join(align(rows)))


async def _follow(poll: Callable[[], Coroutine[Any, Any, TopView]], pause: float, empty: str) -> None:
    """Show the tables on the whole terminal until Ctrl-C. While no answer comes, the last tables stay, with a note."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, clock = Console(), asyncio.get_running_loop().time

    def picture(shown: list[Line], word: str) -> Text:
        body = [*shown, Line(word, "dim")] if word else shown
        return Text("\n", no_wrap=True, overflow="crop").join(Text(line.text, style=line.style) for line in body)

    shown, word = list[Line](), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            asked_at = clock()
            try:
                async with running(poll()) as task:
                    while not (await asyncio.wait({task}, timeout=pause))[0]:
                        live.update(picture(shown, f"no answer for {clock() - asked_at:.0f} s"), refresh=True)
                shown, word = lines(task.result(), console.height, console.width) or [Line(empty)], ""
            except Unavailable as error:
                word = str(error)
            live.update(picture(shown, word), refresh=True)
            await asyncio.sleep(pause)
