"""`rollyard usage`: GPU-hours, CPU-hours, tokens and rollouts, also beside Slurm's accounting of the same jobs."""

from __future__ import annotations

import json
import time

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.printable import printable
from rollyard.cli.rollout_lists import MOMENT
from rollyard.cli.slurm_usage import ComparedJob, OwnJob, compared
from rollyard.client.async_client import AsyncClient
from rollyard.core.clock import as_text
from rollyard.core.errors import RollyardError
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.usage import USAGE_BY, UsageRow, UsageTotals, UsageView
from rollyard.slurm.cli_driver import CliDriver

WEEK_SECONDS = 7 * 86400.0
MAX_JOBS = 20
"""Greatest number of jobs that differ from Slurm's accounting in a table."""
COLUMNS = ["GPU HOURS", "CPU HOURS", "ROLLOUTS", "SCORED", "SCORED/GPU HOUR", "PROMPT TOKENS", "SAMPLED TOKENS"]


@click.command()
@click.option("--since", type=MOMENT, help="a duration such as 24h or 7d, or a date (UTC)  [default: 7d]")
@click.option("--by", type=click.Choice(USAGE_BY), default="pool", help="[default: pool]")
@click.option("-A", "--all-namespaces", is_flag=True, help="of all namespaces; --by namespace implies it")
@click.option("--slurm", is_flag=True, help="also the hours of the same jobs in Slurm's accounting (sacct, run here)")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="output")
@with_client
async def usage(
    client: AsyncClient, namespace: str, since: float | None, by: str, all_namespaces: bool, slurm: bool, form: str
) -> None:
    """Show GPU-hours, CPU-hours, tokens and rollouts of pools.

    The hours are those of running jobs, as their templates ask for them; time in Slurm's queue does not count. Checks do
    not count as rollouts. The time begins with a whole hour.
    """
    where = None if all_namespaces or by == "namespace" else namespace
    begin = since if since is not None else time.time() - WEEK_SECONDS
    found = await client.usage(where, since=begin, by=by)
    jobs = await _compared(client, where, found) if slurm else None
    if form == "json":
        more = {"slurm": [job._asdict() for job in jobs]} if jobs is not None else {}
        click.echo(json.dumps({**found.model_dump(mode="json"), **more}))
        return
    lines = [f"since {as_text(found.since)}", *align(_rows(found))]
    click.echo(printable("\n".join([*lines, *([] if jobs is None else ["", *_slurm_lines(jobs)])])))


def _rows(found: UsageView) -> list[list[str]]:
    names = {"pool": ["NAMESPACE", "POOL"], "namespace": ["NAMESPACE"], "week": ["WEEK"]}[found.by]
    rows = [[*names, *COLUMNS]]
    rows += [[*_key(row, found.by), *_cells(row)] for row in found.rows]
    return [*rows, ["total", *[""] * (len(names) - 1), *_cells(found.total)]]


def _key(row: UsageRow, by: str) -> list[str]:
    if by == "pool":
        return [row.namespace or "", f"{(row.pool_kind or '').lower()}/{row.pool}"]
    return [(row.namespace if by == "namespace" else row.week) or ""]


def _cells(row: UsageTotals) -> list[str]:
    rate = "-" if row.scored_per_gpu_hour is None else f"{row.scored_per_gpu_hour:.1f}"
    counts = [str(row.rollouts), str(row.scored), rate, str(row.prompt_tokens), str(row.sampled_tokens)]
    return [f"{row.gpu_hours:.2f}", f"{row.cpu_hours:.2f}", *counts]


async def _compared(client: AsyncClient, namespace: str | None, found: UsageView) -> list[ComparedJob]:
    """Compare all jobs of this time with sacct. Raises RollyardError if sacct does not answer or keeps no accounts."""
    ended = await client.ended_allocations(namespace, since=found.since, limit=100_000)
    live, _ = await client.list_objects(Allocation.__name__, namespace)
    own = OwnJob.all(ended, [one for one in live if isinstance(one, Allocation)], found.until)
    accounts = await CliDriver().accounts(sorted({job.id for job in own}))
    if accounts is None:
        raise RollyardError(
            "Slurm keeps no accounts here (accounting_storage/none), so there is nothing to compare with"
        )
    return compared(own, accounts, found.since, found.until)


def _slurm_lines(jobs: list[ComparedJob]) -> list[str]:
    """The sums are about the same jobs: those that accounting knows."""
    known = [job for job in jobs if job.slurm_gpu_hours is not None]
    rows = [["", "JOBS", "GPU HOURS", "CPU HOURS"]]
    rows.append(["rollyard", str(len(known)), *_sums([(job.gpu_hours, job.cpu_hours) for job in known])])
    theirs = [(job.slurm_gpu_hours or 0.0, job.slurm_cpu_hours or 0.0) for job in known]
    rows.append(["slurm", str(len(known)), *_sums(theirs)])
    differing, unknown = [job for job in jobs if job.why], [job for job in jobs if job.slurm_gpu_hours is None]
    lines = align(rows)
    if unknown:
        gpu, cpu = _sums([(job.gpu_hours, job.cpu_hours) for job in unknown])
        lines.append(
            f"in neither sum: {len(unknown)} jobs that accounting does not know, {gpu} GPU-hours, {cpu} CPU-hours"
        )
    lines.append(f"{len(differing)} of {len(jobs)} jobs differ")
    table = [["JOB", "ALLOCATION", "GPU HOURS", "SLURM", "CPU HOURS", "SLURM", "WHY"]]
    for job in differing[:MAX_JOBS]:
        gpu, cpu = (_hours(one) for one in (job.slurm_gpu_hours, job.slurm_cpu_hours))
        table.append(
            [job.id, job.allocation, _hours(job.gpu_hours), gpu, _hours(job.cpu_hours), cpu, "; ".join(job.why)]
        )
    if differing:
        lines += ["", *align(table)]
    if len(differing) > MAX_JOBS:
        lines.append(f"… and {len(differing) - MAX_JOBS} more; -o json has all")
    return lines


def _sums(hours: list[tuple[float, float]]) -> list[str]:
    return [f"{sum(one[place] for one in hours):.2f}" for place in (0, 1)]


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:.3f}"
