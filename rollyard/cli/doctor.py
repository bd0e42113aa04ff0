"""`rollyard doctor`: probes this machine with real actions, and says what to change."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollyard.errors import RollyardError, SlurmUnreachable

if TYPE_CHECKING:
    from rollyard.slurm.base import Site


@dataclass(frozen=True)
class Finding:
    level: str
    what: str
    detail: str


@click.command()
@click.option(
    "--scratch", type=click.Path(path_type=Path), default=Path(tempfile.gettempdir()), help="node-local folder"
)
@click.option("--data", type=click.Path(path_type=Path), help="folder meant for `serve --data`")
def doctor(scratch: Path, data: Path | None) -> None:
    """Check what this machine offers; exit 1 when something is missing."""
    failed = False
    for finding in _findings(scratch, data):
        click.echo(f"{finding.level:4}  {finding.what:18} {finding.detail}")
        failed |= finding.level == "FAIL"
    sys.exit(1 if failed else 0)


def _findings(scratch: Path, data: Path | None) -> Iterator[Finding]:
    yield _python()
    yield _guard("cluster", _cluster)
    yield _guard("sandbox", _sandbox)
    yield _guard("scratch", lambda: _folder("scratch", scratch))
    if data is not None:
        yield _guard("data", lambda: _data(data))


def _guard(what: str, probe: Callable[[], Finding]) -> Finding:
    try:
        return probe()
    except (RollyardError, OSError) as error:
        return Finding("FAIL", what, str(error))


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("OK", "python", f"{version} at {sys.executable}")


def _cluster() -> Finding:
    """Asks the Slurm that `serve --cluster auto` would take."""
    from rollyard.slurm.choose import slurm_driver, slurm_is_here

    if not asyncio.run(slurm_is_here()):
        why = "Slurm's commands are here, but no cluster answers (SLURM_CONF names its file)"
        why = why if shutil.which("sbatch") else "no Slurm"
        return Finding("OK", "cluster", f"{why}; the local driver runs jobs on this machine")

    async def ask() -> tuple[str, Site, float]:
        driver, others = await slurm_driver()
        try:
            site, began = await driver.site(), time.monotonic()
            await driver.snapshot()
            taken = time.monotonic() - began
        finally:
            await driver.close()
        why_not = "".join(f", not {name} ({why})" for name, why in others.items())
        return f"driver {driver.name}{why_not}", site, taken

    try:
        driver, site, taken = asyncio.run(ask())
    except SlurmUnreachable as error:
        return Finding("FAIL", "cluster", f"this machine belongs to a Slurm cluster that does not answer: {error}")
    up = [p for p in site.partitions.values() if p.up]
    default = next(
        (f", by default {p.name}" for p in up if p.default), "; none is the default, so pools have to name one"
    )
    usable = sum(node.usable for node in site.nodes.values())
    said = (
        f"Slurm {site.version}, {driver}; partitions {', '.join(sorted(p.name for p in up))} are up{default}; "
        f"{usable} of {len(site.nodes)} nodes usable; a look at the queue took {1e3 * taken:.0f} ms"
    )
    return Finding("OK" if up and usable else "WARN", "cluster", said)


def _sandbox() -> Finding:
    """Starts a real sandbox and runs a command in it."""
    from rollyard.sandbox.base import Limits, SandboxSpec
    from rollyard.sandbox.runtimes import find_runtime
    from rollyard.sandbox.sandbox import Sandboxes

    runtime = find_runtime("auto")

    async def try_one() -> str:
        limits = Limits(cpus=1, memory_bytes=2 << 30, disk_bytes=64 << 20)
        async with (
            Sandboxes(runtime) as sandboxes,
            await sandboxes.start(SandboxSpec(image=None, limits=limits)) as sandbox,
        ):
            return (await sandbox.bash("echo works", 30.0)).output.strip()

    said = asyncio.run(try_one())
    if said != "works":
        return Finding("FAIL", "sandbox", f"{runtime.name} started, but bash in it said {said!r}")
    return Finding("OK", "sandbox", f"{runtime.name}: a sandbox started and ran a command")


def _folder(what: str, folder: Path) -> Finding:
    with tempfile.TemporaryDirectory(prefix="rollyard-doctor-", dir=folder) as probe:
        (Path(probe) / "file").write_bytes(os.urandom(1 << 20))
    free = shutil.disk_usage(folder).free >> 30
    return Finding("OK" if free >= 2 else "WARN", what, f"{folder} can be written, {free} GiB free")


def _data(folder: Path) -> Finding:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return _folder("data", folder)
