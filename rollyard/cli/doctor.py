"""`rollyard doctor`: tries out this machine and its Slurm cluster, with --node also a compute node; prints remedies."""

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
@click.option("--data", type=click.Path(path_type=Path), help="folder that you plan to use for `serve --data`")
@click.option(
    "--node", is_flag=True, help="also probe a compute node with a job; needs --data, a folder that the node can access"
)
@click.option("--partition", help="with --node: partition of the job")
@click.option("--account", help="with --node: account of the job")
@click.option("--advertise", help="with --node: name, address or interface by which the node reaches this machine")
@click.option("--wait", type=click.FloatRange(min=1), default=120.0, help="with --node: seconds to wait for the job")
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
    """Check this machine and its cluster. Exit code 1: at least one check failed."""
    from rollyard.doctor import compute_node as compute
    from rollyard.doctor.finding import findings
    from rollyard.kinds.allocation import AllocationTemplate

    if report is not None:
        compute.report(report)
        return
    found = _local_probes(scratch, data)
    if node and data is None:
        raise click.UsageError("--node needs --data: a folder that the compute node can access too")
    failed = _print_finding(found)
    if node and data is not None:
        template = AllocationTemplate(partition=partition, account=account, time_limit="00:05:00")
        question = compute.NodeProbeRequest(data, scratch, template, advertise, wait)
        failed = _print_finding(findings([("node", lambda: compute.probe_node(question))])) or failed
    sys.exit(1 if failed else 0)


def _local_probes(scratch: Path, data: Path | None) -> Iterator[Finding]:
    from rollyard.doctor import data_folder, slurm_cluster, this_machine
    from rollyard.doctor.finding import findings

    yield from findings([*this_machine.probes(scratch), ("cluster", slurm_cluster.cluster)])
    if data is not None:
        yield from findings([("data", lambda: data_folder.data(data))])


def _print_finding(found: Iterator[Finding]) -> bool:
    """Print the findings; return whether one failed."""
    failed = False
    for finding in found:
        click.echo(f"{finding.level:4}  {finding.what:20} {finding.detail}")
        failed |= finding.level == "FAIL"
    return failed
