"""Commands on batches: list, describe, cancel."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.printable import printable
from rollyard.client.async_client import AsyncClient
from rollyard.kinds.batch import BatchView, DeliveryBias


@click.group()
def batches() -> None:
    """Show or cancel batches."""


@batches.command("list")
@with_client
async def list_(client: AsyncClient, namespace: str) -> None:
    """List batches, newest first."""
    rows = [
        ["ID", "POOL", "SERIES", "STATUS", "DELIVERED", "FILTERED", "FAULTY", "IN FLIGHT", "MEAN REWARD", "STARTED"]
    ]
    for view in await client.batches(namespace):
        of = f"{view.delivered}/{view.target}" if view.target is not None else str(view.delivered)
        numbers = [of, str(view.filtered.total), str(view.faulty), str(view.in_flight), _mean(view)]
        rows.append([view.id, view.pool, view.series, view.status.value, *numbers, _time(view.created_at)])
    click.echo("\n".join(align(rows)))


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


def _mean(view: BatchView) -> str:
    return "-" if view.reward_mean is None else f"{view.reward_mean:.3f}"


def _bias(bias: DeliveryBias) -> str:
    found = bias.model_dump()
    return ", ".join(f"{name} {value:.2f}" for name, value in found.items() if value is not None) or "unknown"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
