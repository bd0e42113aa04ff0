"""`rollyard weights`: shows the weights that a pool serves, or begins an update."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

import click
import pydantic

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.parameter_types import DURATION
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import Invalid
from rollyard.kinds.schema.columns import age
from rollyard.kinds.schema.validation import problems_of
from rollyard.kinds.weights import WeightsOperation, WeightsStatus, WeightsUpdate

SHOWN = 5
"""Greatest number of versions that are shown."""


class _OrFollow(click.Command):
    """The command `weights POOL`, and beside it `weights follow`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["follow"]:
            from rollyard.cli.weights_follow import follow  # loads numpy

            return follow.make_context(f"{info_name} follow", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=_OrFollow)
@click.argument("pool", metavar="POOL")
@click.option("--version", help="version name of the new weights; without it, the command shows the served weights")
@click.option("--path", help="folder of the weights; a path on the engines' nodes")
@click.option("--adapter", help="folder of a LoRA adapter for the pool's model; a path on the engines' nodes")
@click.option(
    "--mode",
    type=click.Choice(["Drain", "Pause", "Abort"]),
    help="running requests: Drain lets them end (default), Pause continues them with the new weights, Abort ends them",
)
@click.option("--checksum", help="expected checksum of the folder; engines refuse other content")
@click.option(
    "--endpoint-timeout",
    "timeout_seconds",
    type=int,
    help="seconds after which an unfinished endpoint counts as failed",
)
@click.option("--wait", is_flag=True, help="wait until the update has ended; exit code 1 if it failed")
@click.option("--timeout", default=3600.0, type=DURATION, show_default=True, help="time to wait, such as 90s or 10m")
@with_client
async def weights(
    client: AsyncClient, namespace: str, pool: str, wait: bool, timeout: float, **given: str | int | None
) -> None:
    """Show or change the weights that an InferencePool serves.

    `rollyard weights follow DIR` serves the checkpoints that a trainer writes.
    """
    name = pool.rpartition("/")[2]
    wanted = {k: v for k, v in given.items() if v is not None}
    if "version" not in wanted:
        if wanted or wait:
            raise click.UsageError("name the weights: --version V with --path FOLDER or --adapter FOLDER")
        click.echo(
            "\n".join(weights_lines(await client.weights_status(namespace, name)) or ["the weights are not known yet"])
        )
        return
    update = _parse_update(wanted)
    found = await client.update_weights(namespace, name, update)
    click.echo(f"inferencepool/{name} {_state_text(found, update.version)}")
    if wait:
        await _follow(client, namespace, name, update.version, timeout)


def _parse_update(wanted: dict[str, Any]) -> WeightsUpdate:
    try:
        return WeightsUpdate.model_validate(wanted)
    except pydantic.ValidationError as error:
        problems = problems_of(WeightsUpdate, error)
        raise Invalid("; ".join(f"{'--' if problem.path else ''}{problem}" for problem in problems)) from None


async def _follow(client: AsyncClient, namespace: str, pool: str, version: str, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            found = await client.wait_weights(namespace, pool, version)
    except TimeoutError:
        click.echo(f"error: timed out: the update to {version} was still under way after {seconds:g} s", err=True)
        sys.exit(1)
    click.echo(f"inferencepool/{pool} {_state_text(found, version)}")
    if found.current is None or found.current.version != version:
        sys.exit(1)


def _state_text(found: WeightsStatus, version: str) -> str:
    operation = found.operation
    if operation is not None and operation.target.version == version:
        return _progress(operation)
    if operation is not None and operation.is_running:
        return f"update to {version} was superseded by {operation.target.version}"
    return f"serves {found.current.version}" if found.current is not None else f"does not serve {version}"


def _progress(operation: WeightsOperation) -> str:
    version = operation.target.version
    match operation.phase:
        case "Pending" | "Updating" if operation.message:
            return f"update to {version} {operation.message}"
        case "Pending":
            return f"update to {version} accepted"
        case "Updating":
            return f"updating to {version}: {operation.done} of {operation.total} endpoints"
        case _:
            return f"update to {version} {operation.phase.lower()}: {operation.message}"


def weights_lines(weights: WeightsStatus) -> list[str]:
    """Return text lines with the versions, newest first, and the last update."""
    if weights.current is None and weights.operation is None:
        return []
    now = datetime.now(UTC)
    rows = [["VERSION", "SINCE", "SOURCE", "CHECKSUM", ""]]
    for record in reversed(weights.history[-SHOWN:]):
        mark = "current" if record == weights.current else ""
        checksum = record.proven or record.checksum or "<unknown>"
        rows.append([record.version, f"{age(record.since, now)} ago", record.source, checksum, mark])
    lines = ["Weights:", *(f"  {line}" for line in align(rows))]
    if (operation := weights.operation) is None:
        return lines
    lines.append(f"  {_progress(operation)}")
    current = weights.current
    if current is not None and not operation.is_running and current.version != operation.target.version:
        lines.append(f"  since {current.since:%Y-%m-%d %H:%M:%S} UTC the pool serves {current.version}")
    if operation.is_running and (waiting := [id for id, p in operation.endpoints.items() if p.transferring]):
        lines.append(f"    waiting for the trainer: {', '.join(waiting)}")
    failed = [[id, p.reason] for id, p in operation.endpoints.items() if p.phase == "Failed"]
    return [*lines, *(f"    failed: {line}" for line in align(failed))] if failed else lines
