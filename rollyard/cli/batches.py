"""Commands on batches: list, describe, steps, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.printable import printable
from rollyard.cli.written_file import say
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import NotFound
from rollyard.kinds.batch import BatchView, DeliveryBias
from rollyard.kinds.metric_history import BatchHistory, TrainingStep

MAX_STEPS = 10_000
"""Greatest number of training steps that the server sends."""
NEWEST = 10
"""Number of training steps whose mean reward is compared with that of the ones before."""


@click.group()
def batches() -> None:
    """Show or cancel batches."""


@batches.command("list")
@click.option("--series", help="only batches of this series (training)")
@click.option("--limit", type=click.IntRange(1), help="only so many of the newest  [default: all]")
@with_client
async def list_(client: AsyncClient, namespace: str, series: str | None, limit: int | None) -> None:
    """List batches, newest first, and the mean of their mean rewards.

    MEAN REWARD is that of all groups with a verdict, also of those that were not delivered.
    """
    rows = [
        ["ID", "POOL", "SERIES", "STATUS", "DELIVERED", "FILTERED", "FAULTY", "IN FLIGHT", "MEAN REWARD", "STARTED"]
    ]
    found = await client.batches(namespace, series=series)
    shown = found[:limit]
    for view in shown:
        of = f"{view.delivered}/{view.target}" if view.target is not None else str(view.delivered)
        numbers = [of, str(view.filtered.total), str(view.faulty), str(view.in_flight), _mean(view)]
        rows.append([view.id, view.pool, view.series, view.status.value, *numbers, _time(view.created_at)])
    click.echo("\n".join(align(rows)))
    means = [view.reward_mean for view in shown if view.reward_mean is not None]
    of = f"{len(shown)} of {len(found)}" if len(shown) < len(found) else str(len(found))
    say(f"{of} batches; mean of their mean rewards: {_number(sum(means) / len(means) if means else None)}")


@batches.command("describe")
@click.argument("id")
@with_client
async def describe(client: AsyncClient, namespace: str, id: str) -> None:
    """Describe a batch: its progress, filtered groups, wasted tokens, staleness and bias."""
    view = await client.get_batch(id, namespace)
    click.echo(printable("\n".join(described(view))))
    if view.dataset is not None and (history := (await client.dataset(view.dataset, namespace)).history):
        streaks = ", ".join(f"{tasks} tasks {streak} times" for streak, tasks in history.streaks.items())
        click.echo(
            f"dataset {view.dataset}: {history.tasks} tasks with a verdict; uninformative in a row: {streaks or 'none'}"
        )


@batches.command("steps")
@click.argument("name")
@click.option("--series", is_flag=True, help="NAME is a series: show the steps of all its batches")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="output")
@with_client
async def steps(client: AsyncClient, namespace: str, name: str, series: bool, form: str) -> None:
    """Show the training steps of a batch, or of a whole series: rewards, informative share, staleness and tokens.

    REWARD is the mean reward of the delivered groups and its standard deviation, QUARTILES their 25 %, 50 % and 75 %
    points, ALL the mean of all groups with a verdict, delivered or not. FILTERED counts the groups that the filter held back.
    STALENESS is the number of training steps between a group's draw and the step that uses it: the mean and the
    greatest. TOKENS (MEAN) is of a delivered rollout, sampled; WASTED counts
    the sampled tokens of groups that were not delivered. A dash stands for an unknown value. The lines below the table are
    about all steps together.
    """
    found = await _batches(client, namespace, name, series)
    history = await client.batch_history(found[0].id, namespace, series=series, limit=MAX_STEPS)
    click.echo(history.model_dump_json(indent=2) if form == "json" else "\n".join(stepped(history, found)))


async def _batches(client: AsyncClient, namespace: str, name: str, series: bool) -> list[BatchView]:
    """Return the batches of a series, or the one batch. Raises NotFound."""
    of_series = await client.batches(namespace, series=name) if series else []
    if of_series or not series:
        try:
            return of_series or [await client.get_batch(name, namespace)]
        except NotFound as error:
            if not await client.batches(namespace, series=name):
                raise
            raise NotFound(f"{error}; there is a series of this name: add --series") from None
    raise NotFound(
        f"there is no batch of series {name!r} in namespace {namespace!r}; `rollyard batches list` shows the series"
    )


@batches.command("cancel")
@click.argument("ids", nargs=-1, required=True)
@click.option(
    "--rollouts",
    is_flag=True,
    help="cancel the unfinished rollouts too; without it the next batch of the series takes them",
)
@with_client
async def cancel(client: AsyncClient, namespace: str, ids: tuple[str, ...], rollouts: bool) -> None:
    """End batches. Batches that have already ended stay as they are."""
    for id in ids:
        view = await client.cancel_batch(id, namespace, rollouts="cancel" if rollouts else "keep")
        click.echo(f"batch/{id} {view.status.value.lower()}")


def described(view: BatchView) -> list[str]:
    """Return the state of a batch as lines of text."""
    filtered, target = view.filtered, f" of {view.target}" if view.target is not None else " (stream)"
    share = "-" if view.informative_share is None else f"{view.informative_share:.0%}"
    lines = [
        f"batch {view.id} in pool {view.pool}, series {view.series}: {view.status.value}",
        f"started {_time(view.created_at)}" + (f", ended {_time(view.ended_at)}" if view.ended_at else ""),
        f"delivered {view.delivered}{target}, acknowledged {view.acknowledged}; {view.in_flight} groups in flight",
        f"drawn {view.drawn}, carried in {view.carried_in}; estimated share that passes the filter "
        f"{view.estimated_pass_rate:.0%}",
        f"informative share {share} (groups whose rewards differ, of those with a verdict and two rewards or more)",
        f"filtered {filtered.total}: {filtered.all_low} all low, {filtered.all_high} all high, {filtered.other} other",
        f"mean reward {_mean(view)} (groups with a verdict, delivered or not)",
        f"faulty {view.faulty} (too few rewards); wasted tokens {view.wasted_tokens}",
        f"passed over {view.passed_over} tasks that were uninformative several times in a row",
        f"bias of this batch: {_bias(view.bias)}; of its series: {_bias(view.series_bias)}",
    ]
    if view.staleness_mean is not None:
        lines.append(f"staleness: {view.staleness_mean:g} training steps in the mean")
    if view.seconds_to_target is not None:
        lines.append(f"time to target: {view.seconds_to_target:g} s")
    return [*lines, view.waiting] if view.waiting else lines


def stepped(history: BatchHistory, batches: Sequence[BatchView] = ()) -> list[str]:
    """Return training steps as a table, and what holds over all of them. `batches`: those of the steps."""
    if not history.steps:
        return ["no group has a verdict yet, so there is no training step"]
    head = [
        "STEP",
        "BATCH",
        "GROUPS",
        "REWARD",
        "QUARTILES",
        "ALL",
        "INFORMATIVE",
        "FILTERED",
        "FAULTY",
        "STALENESS (MEAN)",
        "TOKENS (MEAN)",
        "WASTED",
        "ENDED",
    ]
    judged = sum(step.judged_rollouts for step in history.steps)
    of = f"over {judged} rollouts of the steps shown (groups with a verdict, delivered or not)"
    return [
        *align([head, *map(_step, history.steps)]),
        f"mean reward {_number(_judged_mean(history.steps))} {of}",
        *_newest(history.steps),
        *_totals(history.steps),
        *_times_to_target(batches),
    ]


def _judged_mean(steps: Sequence[TrainingStep]) -> float | None:
    judged = sum(step.judged_rollouts for step in steps)
    return sum(step.judged_rollouts * (step.judged_reward_mean or 0.0) for step in steps) / judged if judged else None


def _newest(steps: Sequence[TrainingStep]) -> list[str]:
    """Return whether the reward rises: the mean of the last steps, and of those before."""
    found = [step for step in steps if step.judged_rollouts]
    last, before = found[-NEWEST:], found[-2 * NEWEST : -NEWEST]
    if not before:
        return []
    means = f"{_number(_judged_mean(last))}; of the {len(before)} before: {_number(_judged_mean(before))}"
    return [f"mean reward of the last {len(last)} steps {means}"]


def _totals(steps: Sequence[TrainingStep]) -> list[str]:
    low, high, other, wasted, differing, compared = (
        sum(getattr(step, name) for step in steps)
        for name in ("all_low", "all_high", "other", "wasted_tokens", "differing", "compared")
    )
    share = f"{differing / compared:.0%}" if compared else "-"
    lines = [
        f"informative share {share} ({differing} of {compared} groups)",
        f"filtered {low + high + other}: {low} all low, {high} all high, {other} other; wasted tokens {wasted}",
    ]
    aged = [(step.groups, step.staleness_mean) for step in steps if step.staleness_mean is not None and step.groups]
    if aged:
        mean = sum(number * age for number, age in aged) / sum(number for number, _ in aged)
        greatest = max((step.staleness_max for step in steps if step.staleness_max is not None), default=0)
        lines.append(f"staleness: {mean:.3g} training steps in the mean, at most {greatest}")
    return lines


def _times_to_target(batches: Sequence[BatchView]) -> list[str]:
    times = [one.seconds_to_target for one in batches if one.seconds_to_target is not None]
    return [f"time to target: {sum(times) / len(times):.3g} s in the mean of {len(times)} batches"] if times else []


def _step(step: TrainingStep) -> list[str]:
    spread = "" if step.reward_std is None else f" ±{step.reward_std:.3f}"
    share = "-" if step.informative_share is None else f"{step.informative_share:.0%}"
    quartiles = "-" if step.reward_quartiles is None else " ".join(f"{one:g}" for one in step.reward_quartiles[1:4])
    return [
        str(step.step), step.batch, str(step.groups), _number(step.reward_mean) + spread, quartiles,
        _number(step.judged_reward_mean),
        share, str(step.all_low + step.all_high + step.other), str(step.faulty), _staleness(step),
        _number(step.tokens_mean, 0), str(step.wasted_tokens),
        _time(step.ended_at),
    ]  # fmt: skip


def _staleness(step: TrainingStep) -> str:
    greatest = "" if step.staleness_max is None else f", at most {step.staleness_max}"
    return _number(step.staleness_mean, 2) + greatest


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _mean(view: BatchView) -> str:
    return _number(view.reward_mean)


def _bias(bias: DeliveryBias) -> str:
    found = bias.model_dump()
    return ", ".join(f"{name} {value:.2f}" for name, value in found.items() if value is not None) or "unknown"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
