"""Probes the Slurm cluster that `serve --cluster auto` would use: driver, partitions, nodes, settings that affect pools."""

from __future__ import annotations

import asyncio
import getpass
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping

from rollyard.core.errors import SlurmUnreachable
from rollyard.doctor.finding import Finding
from rollyard.slurm.base import Site
from rollyard.slurm.choose_driver import slurm_driver, slurm_is_here

COMMAND_SECONDS = 30.0


def cluster() -> Iterator[Finding]:
    if not asyncio.run(slurm_is_here()):
        why = "Slurm's commands are installed, but no cluster answers (check SLURM_CONF)"
        why = why if shutil.which("sbatch") else "no Slurm"
        yield Finding("OK", "cluster", f"{why}; the local driver runs jobs on this machine")
        return
    try:
        driver, site, seconds = asyncio.run(_detect_driver())
    except SlurmUnreachable as error:
        yield Finding("FAIL", "cluster", f"this machine belongs to a Slurm cluster that does not answer: {error}")
        return
    yield _describe_site(driver, site, seconds)
    if config := _config():  # empty at a site that has slurmrestd but not Slurm's commands
        yield from check_config(config)
    yield from _association_limits()


async def _detect_driver() -> tuple[str, Site, float]:
    """Return the driver's name (with the reasons why better drivers cannot be used), the site, and how many seconds it
    took to read the queue."""
    driver, others = await slurm_driver()
    try:
        site, began = await driver.site(), time.monotonic()
        await driver.list_jobs()
        seconds = time.monotonic() - began
    finally:
        await driver.close()
    return "; ".join([driver.name, *(f"not {name}: {why}" for name, why in others.items())]), site, seconds


def _describe_site(driver: str, site: Site, seconds: float) -> Finding:
    up = [p for p in site.partitions.values() if p.up]
    default = next(
        (f", by default {p.name}" for p in up if p.default), "; none is the default, so each pool must name one"
    )
    usable = sum(node.usable for node in site.nodes.values())
    detail = (
        f"Slurm {site.version} by the driver {driver}; partitions {', '.join(sorted(p.name for p in up))} are up{default}; "
        f"{usable} of {len(site.nodes)} nodes usable; a look at the queue took {1e3 * seconds:.0f} ms"
    )
    return Finding("OK" if up and usable else "WARN", "cluster", detail)


def check_config(config: Mapping[str, str]) -> Iterator[Finding]:
    """Check the settings of `scontrol show config` that affect pools."""
    track = config.get("ProctrackType", "")
    if track and "cgroup" not in track:
        yield Finding(
            "WARN",
            "processes",
            f"ProctrackType={track}: processes of a job may outlive it; proctrack/cgroup ends all of them",
        )
    if "cgroup" not in config.get("TaskPlugin", ""):
        yield Finding(
            "WARN",
            "confinement",
            "TaskPlugin is without task/cgroup: jobs on one node can take each other's memory and GPUs",
        )
    if (wait := _number(config.get("KillWait"))) is not None and wait < 10:
        yield Finding(
            "WARN", "KillWait", f"{wait} s between TERM and KILL; node agents need 30 s to hand back rollouts"
        )
    if (age := _number(config.get("MinJobAge"))) is not None and age < 10:
        yield Finding(
            "WARN", "MinJobAge", f"{age} s: ended jobs vanish before Rollyard sees them; 300 is Slurm's default"
        )
    if "none" in config.get("AccountingStorageType", "none"):
        yield Finding("OK", "accounting", "none: the end of a job that slurmctld has forgotten stays unknown")
    if (size := _number(config.get("MaxArraySize"))) is not None and size < 64:
        yield Finding(
            "WARN",
            "MaxArraySize",
            f"{size}: the largest job array in which Rollyard can submit; 1001 is Slurm's default",
        )


def _association_limits() -> Iterator[Finding]:
    """Report the limits of the user's Slurm associations. These limits may restrict the jobs or GPUs of a pool."""
    fields = ("Account", "Partition", "QOS", "MaxJobs", "MaxSubmit", "GrpTRES", "MaxTRES", "MaxWall")
    command = ("sacctmgr", "-nP", "show", "assoc", f"user={getpass.getuser()}", f"format={','.join(fields)}")
    rows = [dict(zip(fields, line.split("|"), strict=False)) for line in _run(command).splitlines()]
    for row in rows:
        words = [f"{name} {row[name]}" for name in fields[2:] if row.get(name)]
        where = f"account {row['Account']}" + (f" on {row['Partition']}" if row.get("Partition") else "")
        yield Finding("OK", "limits", f"{where}: {', '.join(words) or 'none'}")


def _config() -> dict[str, str]:
    return {k: v for k, v in re.findall(r"^(\w+)\s+= (.*)$", _run(("scontrol", "show", "config")), re.MULTILINE)}


def _run(command: tuple[str, ...]) -> str:
    """Return a command's output; empty if the command fails, because the output is used for hints only."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _number(text: str | None) -> int | None:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else None
