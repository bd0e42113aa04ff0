"""`rollyard doctor`: probes this machine, its Slurm and a node of it with real actions, and says what to change."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from rollyard.doctor.finding import Finding


@click.command()
@click.option(
    "--scratch", type=click.Path(path_type=Path), default=Path(tempfile.gettempdir()), help="node-local folder"
)
@click.option("--data", type=click.Path(path_type=Path), help="folder meant for `serve --data`")
@click.option(
    "--node", is_flag=True, help="probe a compute node too, by a job; takes --data, which the node has to see"
)
@click.option("--partition", help="with --node: where")
@click.option("--account", help="with --node: on whose account")
@click.option("--advertise", help="with --node: name, address or interface that the node is to reach us by")
@click.option("--wait", type=click.FloatRange(min=1), default=120.0, help="with --node: seconds for the job")
@click.option("--report", type=click.Path(path_type=Path), hidden=True)
def doctor(
    scratch: Path,
    data: Path | None,
    node: bool,
    partition: str | None,
    account: str | None,
    advertise: str | None,
    wait: float,
    report: Path | None,
) -> None:
    """Check what this machine and its cluster offer; exit 1 when something is missing."""
    from rollyard.doctor import node as compute
    from rollyard.doctor.finding import findings
    from rollyard.kinds.allocation import AllocationTemplate

    if report is not None:
        compute.report(report)
        return
    found = _here(scratch, data)
    if node and data is None:
        raise click.UsageError("--node takes --data: a folder that the node sees as well")
    failed = _show(found)
    if node and data is not None:
        template = AllocationTemplate(partition=partition, account=account, time_limit="00:05:00")
        question = compute.Question(data, scratch, template, advertise, wait)
        failed = _show(findings([("node", lambda: compute.ask(question))])) or failed
    sys.exit(1 if failed else 0)


def _here(scratch: Path, data: Path | None) -> Iterator[Finding]:
    from rollyard.doctor import cluster, machine, shared
    from rollyard.doctor.finding import findings

    yield from findings([*machine.probes(scratch), ("cluster", cluster.cluster)])
    if data is not None:
        yield from findings([("data", lambda: shared.data(data))])


def _show(found: Iterator[Finding]) -> bool:
    """Whether something failed."""
    failed = False
    for finding in found:
        click.echo(f"{finding.level:4}  {finding.what:20} {finding.detail}")
        failed |= finding.level == "FAIL"
    return failed
