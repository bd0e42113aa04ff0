"""`rollyard usage`: GPU-hours, CPU-hours, tokens and rollouts, also beside Slurm's accounting of the same jobs."""

from __future__ import annotations

import json
import time

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.printable import printable
from rollyard.cli.rollout_lists import MOMENT
from rollyard.client.async_client import AsyncClient
from rollyard.core.clock import as_text
from rollyard.core.errors import RollyardError
from rollyard.kinds.usage import USAGE_BY, HoursBesideSlurm, SlurmUsageView, UsageRow, UsageTotals, UsageView

WEEK_SECONDS = 7 * 86400.0
MAX_JOBS, ALL_JOBS = 20, 100_000
"""Greatest number of jobs beside Slurm's accounting, in a table and in JSON."""
COLUMNS = [
    "GPU HOURS", "CPU HOURS", "ROLLOUTS", "SCORED", "SCORED/GPU HOUR", "SCORED/CPU HOUR", "PROMPT TOKENS", "SAMPLED TOKENS",
]  # fmt: skip


@click.command()
@click.option("--since", type=MOMENT, help="a duration such as 24h or 7d, or a date (UTC)  [default: 7d]")
@click.option("--by", type=click.Choice(USAGE_BY), default="pool", help="[default: pool]")
@click.option("-A", "--all-namespaces", is_flag=True, help="of all namespaces; --by namespace implies it")
@click.option("--slurm", is_flag=True, help="also the hours of the same jobs in Slurm's accounting")
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
    limit = ALL_JOBS if form == "json" else MAX_JOBS
    beside = await client.slurm_usage(where, since=begin, limit=limit) if slurm else None
    if beside is not None and beside.missing is not None:
        raise RollyardError(beside.missing)
    if form == "json":
        more = {"slurm": beside.model_dump(mode="json")} if beside is not None else {}
        click.echo(json.dumps({**found.model_dump(mode="json"), **more}))
        return
    lines = [f"since {as_text(found.since)}", *align(_rows(found))]
    click.echo(printable("\n".join([*lines, *([] if beside is None else ["", *_slurm_lines(beside)])])))


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
    rates = ["-" if rate is None else f"{rate:.2f}" for rate in (row.scored_per_gpu_hour, row.scored_per_cpu_hour)]
    counts = [str(row.rollouts), str(row.scored), *rates, str(row.prompt_tokens), str(row.sampled_tokens)]
    return [f"{row.gpu_hours:.2f}", f"{row.cpu_hours:.2f}", *counts]


def _slurm_lines(found: SlurmUsageView) -> list[str]:
    """Both sums are about the same jobs: those that accounting knows."""
    rows = [["NAMESPACE", "POOL", "JOBS", "GPU HOURS", "SLURM", "CPU HOURS", "SLURM", "DIFFER", "UNKNOWN TO SLURM"]]
    rows += [[row.namespace, f"{row.pool_kind.lower()}/{row.pool}", *_pair(row)] for row in found.rows]
    total = found.total
    lines = align([*rows, ["total", "", *_pair(total)]])
    if total.unknown_jobs:
        hours = f"{total.unknown_gpu_hours:.2f} GPU-hours, {total.unknown_cpu_hours:.2f} CPU-hours"
        lines.append(f"in neither sum, because accounting does not know the job: {total.unknown_jobs}, with {hours}")
    if found.differences:
        table = [["GPU HOURS", "CPU HOURS", "JOBS", "WHY SLURM HAS MORE OR LESS"]]
        table += [[f"{d.gpu_hours:+.3f}", f"{d.cpu_hours:+.3f}", str(d.jobs), d.message] for d in found.differences]
        lines += ["", *align(table)]
    differing = [job for job in found.jobs if job.why]
    if differing:
        table = [["JOB", "ALLOCATION", "GPU HOURS", "SLURM", "CPU HOURS", "SLURM", "WHY"]]
        for job in differing:
            gpu, cpu = (_hours(one) for one in (job.slurm_gpu_hours, job.slurm_cpu_hours))
            table.append(
                [job.id, job.allocation, _hours(job.gpu_hours), gpu, _hours(job.cpu_hours), cpu, "; ".join(job.why)]
            )
        lines += ["", *align(table)]
    if more := total.differing + total.unknown_jobs - len(differing):
        lines.append(f"… and {more} more; -o json has all")
    return lines


def _pair(row: HoursBesideSlurm) -> list[str]:
    gpu, cpu = (f"{hours or 0:.2f}" for hours in (row.slurm_gpu_hours, row.slurm_cpu_hours))
    return [
        str(row.jobs),
        f"{row.gpu_hours:.2f}",
        gpu,
        f"{row.cpu_hours:.2f}",
        cpu,
        str(row.differing),
        str(row.unknown_jobs),
    ]


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:.3f}"
