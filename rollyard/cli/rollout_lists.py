"""`rollyard rollouts list|top|summary|losses`: which rollouts there are, which are the greatest, what they come to, and what
they lost."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.parameter_types import DURATION
from rollyard.cli.printable import printable_line
from rollyard.cli.written_file import say
from rollyard.client.async_client import AsyncClient
from rollyard.core.clock import as_text
from rollyard.core.errors import NotFound
from rollyard.kinds.rollout import RolloutSums, RolloutView, Status
from rollyard.kinds.schema.columns import age

C = TypeVar("C", bound=Callable[..., Any])
PROMPT_CHARS = 60
STATUSES = [status.value for status in Status]
SORTED = {
    "ended": "ENDED", "reward": "REWARD", "tokens": "TOKENS", "turns": "TURNS", "seconds": "SECONDS",
    "failed_calls": "FAILED CALLS",
}  # fmt: skip
"""Field by which a list may be sorted -> its column."""
TABLE = ["ID", "POOL", "KIND", "STATUS", "STAGE", "ATTEMPT", "REWARD", "REASON", "AGE"]
WIDE = [*TABLE[:-1], "TOKENS", "TURNS", "FAILED CALLS", "SECONDS", "NODE", "WEIGHTS", "GROUP", "SUBMITTED", "ENDED"]
TOP = ["ID", "POOL", "KIND", "STATUS", "TOKENS", "TURNS", "SECONDS", "REWARD", "ENDED"]
_CELLS: dict[str, Callable[[RolloutView], str]] = {
    "ID": lambda view: view.id,
    "POOL": lambda view: view.pool,
    "KIND": lambda view: view.task_kind,
    "STATUS": lambda view: view.status.value,
    "STAGE": lambda view: view.stage.value if view.stage else "-",
    "ATTEMPT": lambda view: str(view.attempt),
    "LOST": lambda view: str(view.lost),
    "REWARD": lambda view: _text(view.reward),
    "REASON": lambda view: (
        view.error.reason if view.error else printable_line(view.waiting.word) if view.waiting else "-"
    ),
    "AGE": lambda view: age(datetime.fromtimestamp(view.created_at, UTC), datetime.now(UTC)),
    "TOKENS": lambda view: _text(view.tokens),
    "TURNS": lambda view: _text(view.turns),
    "SECONDS": lambda view: _text(view.seconds),
    "FAILED CALLS": lambda view: _text(view.failed_calls),
    "NODE": lambda view: view.node or "-",
    "WEIGHTS": lambda view: ",".join(view.weights_versions) or "-",
    "GROUP": lambda view: view.group or "-",
    "SUBMITTED": lambda view: as_text(view.created_at),
    "ENDED": lambda view: "-" if view.finished_at is None else as_text(view.finished_at),
}


class Moment(click.ParamType[float]):
    """Time in Unix seconds: a duration before now, such as `1h` or `7d`; a date, such as `2026-11-30` or
    `2026-11-30T14:00:00Z`; a time of today, such as `14:00`; `today` or `yesterday`. Without a zone in UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        now = datetime.now(UTC)
        days = {"now": now, "today": _day(now), "yesterday": _day(now - timedelta(days=1))}
        if (named := days.get(value.strip().lower())) is not None:
            return named.timestamp()
        with contextlib.suppress(click.UsageError):
            return now.timestamp() - DURATION.convert(value, param, ctx)
        text = value.strip()
        if re.fullmatch(r"\d{1,2}:.*", text):
            text = f"{now.date()}T{text.rjust(len(text) + (text[1] == ':'), '0')}"
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{value!r} is no time; write a duration before now such as 90s, 2h or 7d, a date such as 2026-11-30 or "
                "2026-11-30T14:00 (UTC), a time of today such as 14:00, `today` or `yesterday`",
                param,
                ctx,
            )
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _day(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


MOMENT = Moment()
_OPTIONS = (
    click.option("--pool", help="only rollouts of this RolloutPool"),
    click.option("--group", help="only rollouts of this group, or of this evaluation"),
    click.option("--batch", help="only rollouts of this batch"),
    click.option(
        "--status",
        multiple=True,
        type=click.Choice(STATUSES, case_sensitive=False),
        help="only rollouts with this status; repeat for several",
    ),
    click.option("--reason", help="only rollouts that ended for this reason, such as SandboxLost"),
    click.option("--kind", help="only rollouts of this task kind"),
    click.option("--mode", type=click.Choice(["train", "eval", "check"]), help="only rollouts of this mode"),
    click.option("--task", help="only rollouts of the task with this digest"),
    click.option(
        "--metadata",
        multiple=True,
        metavar="NAME=VALUE",
        help="only rollouts of tasks with this metadata; repeat for several",
    ),
    click.option(
        "--since",
        type=MOMENT,
        help="only rollouts that ended since, or have not ended: a duration such as 1h or 7d, or a date (UTC)",
    ),
    click.option("--until", type=MOMENT, help="only rollouts that ended before"),
    click.option("--min-reward", type=float, help="only rollouts with at least this reward"),
    click.option("--max-reward", type=float, help="only rollouts with at most this reward"),
    click.option("--suspicious", is_flag=True, help="only rewards above 0 that people should look at"),
    click.option("--failed-calls", is_flag=True, help="only rollouts with a tool call that failed"),
    click.option("--failed-tool", metavar="NAME", help="only rollouts with a call of this tool that failed"),
    click.option("--lost", is_flag=True, help="only rollouts that lost an attempt or a lease, and went on"),
    click.option("--lost-reason", metavar="REASON", help="only rollouts that lost one for this reason"),
    click.option("--prefix", default="", help="only rollouts whose ids begin with it"),
)


def searched(command: C) -> C:
    """Add the options of a search."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def conditions(given: Mapping[str, Any], sort: str | None = None) -> dict[str, Any]:
    """Return the options of a search as arguments of the client. Raises UsageError."""
    if wrong := next((text for text in given["metadata"] if "=" not in text), None):
        raise click.UsageError(f"--metadata {wrong!r}: write NAME=VALUE, such as difficulty=hard")
    plain = {name: given[name] for name in ("pool", "group", "status", "suspicious")}
    names = (
        "batch",
        "reason",
        "kind",
        "mode",
        "task",
        "since",
        "until",
        "min_reward",
        "max_reward",
        "prefix",
        "failed_tool",
        "lost_reason",
    )
    search = {name: str(given[name]) for name in names if given[name] not in (None, "")}
    search |= {"sort": sort} if sort else {}
    search |= {name: "true" for name in ("failed_calls", "lost") if given[name]}
    return {**plain, "metadata": dict(text.split("=", 1) for text in given["metadata"]), "search": search}


async def explain_nothing(client: AsyncClient, namespace: str, given: Mapping[str, Any]) -> None:
    """Say on standard error that a search found nothing, and if its kind may be misspelt. Raises NotFound, with the existing
    pools, if the search's pool does not exist."""
    if (pool := given["pool"]) is not None:
        pools = [one.metadata.name for one in (await client.list_objects("RolloutPool", namespace))[0]]
        if pool not in pools:
            there = ", ".join(pools) or "none; create one first"
            raise NotFound(f"there is no RolloutPool {pool!r} in namespace {namespace!r}; existing ones: {there}")
    if (kind := given["kind"]) is not None:
        kinds = [row.value for row in await client.summarize("kind", namespace) if row.value]
        if kind not in kinds:
            there = ", ".join(kinds) or "none"
            say(f"no rollout of kind {kind!r} has ended in namespace {namespace!r}; kinds of those that have: {there}")
    if matching := await client.count_rollouts(namespace, **conditions(given)):
        why = "each has not ended, is a check, or lacks the value of --sort"
        say(f"{matching} rollouts match, and none of them counts here: {why}")
        return
    say(f"0 of {await client.count_rollouts(namespace)} rollouts match in namespace {namespace!r}")


@click.command("list")
@searched
@click.option(
    "--sort", metavar="FIELD", help=f"{', '.join(SORTED)}; with - before it the greatest first  [default: by arrival]"
)
@click.option("--limit", type=click.IntRange(1), help="greatest number of rollouts  [default: all; 5000 if sorted]")
@click.option("--absolute", is_flag=True, help="the times of submit and end in place of the age")
@click.option(
    "-o",
    "--output",
    "form",
    default="table",
    help="table, wide, json, id, or columns=FIELD,… with fields of the JSON, such as columns=id,reward,metadata.difficulty",
)
@with_client
async def list_(
    client: AsyncClient, namespace: str, sort: str | None, limit: int | None, absolute: bool, form: str, **given: Any
) -> None:
    """List rollouts, one line each."""
    if sort is not None and sort.removeprefix("-") not in SORTED:
        raise click.UsageError(
            f"--sort {sort}: write one of {', '.join(SORTED)}, with - before it for the greatest first"
        )
    views = [view async for view in client.rollouts(namespace, limit=limit, **conditions(given, sort))]
    if not views:
        await explain_nothing(client, namespace, given)
    elif limit is not None and len(views) == limit:
        total = await client.count_rollouts(namespace, **conditions(given))
        say(f"{len(views)} of {total} rollouts")
    if form == "json":
        click.echo(json.dumps([view.model_dump(mode="json") for view in views]))
    elif form == "id":
        click.echo("".join(f"{view.id}\n" for view in views), nl=False)
    elif form.startswith("columns="):
        click.echo("\n".join(align(_columns(views, form.removeprefix("columns=")))))
    elif form in ("table", "wide"):
        names = WIDE if form == "wide" else [*TABLE[:-1], "SUBMITTED", "ENDED"] if absolute else TABLE
        more = [SORTED.get((sort or "").removeprefix("-")), "LOST" if given["lost"] or given["lost_reason"] else None]
        _print([*names, *(one for one in more if one is not None and one not in names)], views)
    else:
        raise click.UsageError(f"-o {form}: write table, wide, json, id, or columns=FIELD,…")


def _columns(views: Sequence[RolloutView], names: str) -> list[list[str]]:
    paths = [path.split(".") for path in names.split(",") if path]
    if wrong := next((path for path in paths if path[0] not in RolloutView.model_fields), [] if paths else [""]):
        known = ", ".join(RolloutView.model_fields)
        raise click.UsageError(f"-o columns={names}: there is no field {wrong[0]!r}; the fields are {known}")
    rows = [[path[-1].upper() for path in paths]]
    for view in views:
        data = view.model_dump(mode="json")
        rows.append([_text(_value(data, path)) for path in paths])
    return rows


def _value(data: Any, path: Sequence[str]) -> Any:
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def cell(view: RolloutView, column: str) -> str:
    """Return the text of a rollout in a column, such as STATUS."""
    return _CELLS[column](view)


def _print(names: Sequence[str], views: Sequence[RolloutView]) -> None:
    click.echo("\n".join(align([names, *([cell(view, name) for name in names] for view in views)])))


@click.command()
@searched
@click.option(
    "--by", type=click.Choice(["tokens", "seconds", "turns", "reward"]), default="tokens", help="[default: tokens]"
)
@click.option("--limit", default=10, type=click.IntRange(1), help="number of rollouts  [default: 10]")
@with_client
async def top(client: AsyncClient, namespace: str, by: str, limit: int, **given: Any) -> None:
    """List the rollouts with the most sampled tokens, seconds or turns, or with the highest rewards."""
    views = [view async for view in client.rollouts(namespace, limit=limit, **conditions(given, f"-{by}"))]
    if not views:
        await explain_nothing(client, namespace, given)
    _print(TOP, views)


@click.command()
@searched
@click.option(
    "--by",
    default="reason",
    help="reason, kind, pool, status, mode, group, task (the hardest first), or metadata.NAME  [default: reason]",
)
@click.option("--limit", default=50, type=click.IntRange(1, 5000), help="number of lines  [default: 50]")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="output")
@with_client
async def summary(client: AsyncClient, namespace: str, by: str, limit: int, form: str, **given: Any) -> None:
    """Sum up ended rollouts: how many, their mean reward, and how many of their groups were informative.

    Checks do not count. Rollouts without a reward are in no mean. TOKENS are the sampled ones. SECONDS are at
    work, without waiting.
    """
    rows = await client.summarize(by, namespace, limit=limit, **conditions(given))
    if not rows:
        await explain_nothing(client, namespace, given)
    if by == "task" and rows and not (given["mode"] or given["batch"] or given["group"]):
        modes = [row.value or "" for row in await client.summarize("mode", namespace, **conditions(given))]
        if len(modes) > 1:
            say(f"rollouts of several modes together ({', '.join(sorted(modes))}); --mode MODE sums up one of them")
    if form == "json":
        click.echo(json.dumps([row.model_dump(mode="json") for row in rows]))
        return
    named = by.rpartition(".")[2].upper()
    more = ["KIND", "BEST"] if by == "task" else []
    last = ["PROMPT"] if by == "task" else []
    header = [
        named,
        "ROLLOUTS",
        "SCORED",
        "MEAN REWARD",
        *more,
        "INFORMATIVE",
        "TOKENS (SUM)",
        "SECONDS (SUM)",
        "NEWEST",
        *last,
    ]
    click.echo("\n".join(align([header, *(_summed(row, by) for row in rows)])))


def _summed(row: RolloutSums, by: str) -> list[str]:
    share = f"{row.informative}/{row.groups}" if row.groups else "-"
    mean = "-" if row.mean_reward is None else f"{row.mean_reward:.3f}"
    more = [row.kind, _text(row.best_reward)] if by == "task" else []
    counts = [str(row.rollouts), str(row.scored), mean, *more, share]
    unknown = "not known" if by == "task" else "-"
    last = [printable_line(" ".join((row.prompt or "-").split()))[:PROMPT_CHARS]] if by == "task" else []
    return [row.value or unknown, *counts, str(row.tokens), f"{row.seconds:.0f}", row.newest, *last]


@click.command()
@click.option(
    "--since", type=MOMENT, help="only losses since: a duration such as 1h or 7d, or a date (UTC)  [default: 1h]"
)
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="output")
@with_client
async def losses(client: AsyncClient, namespace: str, since: float | None, form: str) -> None:
    """Count lost attempts and leases, by reason and node.

    Counted are infrastructure faults and lost leases after which a rollout went on. `rollouts summary` has those that
    ended a rollout. Leases that were handed back, as at a drain, do not count.
    """
    found = await client.losses(namespace, since=since)
    if form == "json":
        click.echo(found.model_dump_json())
        return
    rows = [["REASON", "NODE", "LOSSES", "ROLLOUTS", "NEWEST"]]
    for row in found.rows:
        rows.append([row.reason or "-", row.node or "-", str(row.losses), str(row.rollouts), row.newest])
    click.echo("\n".join(align(rows)))
    total = sum(row.losses for row in found.rows)
    say(f"{total} lost attempts and leases since {as_text(found.since)}, after which their rollouts went on")
    if found.more:
        say("only the newest rollouts with losses are counted; --since with a shorter time counts them all")
