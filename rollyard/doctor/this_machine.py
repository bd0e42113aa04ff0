"""Probes this machine: Python, sandboxes and their requirements, and the scratch folder."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rollyard.doctor.finding import Finding, Probe

SCRATCH_GIB = 2
PROBE_SECONDS = 20.0
_SWITCHES = {
    "user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=15000"),
    "kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
}
"""Switches below /proc/sys, each with the value that forbids user namespaces and the remedy for an administrator."""


def probes(scratch: Path) -> list[tuple[str, Probe]]:
    return [
        ("python", python),
        ("user namespaces", user_namespaces),
        ("sandbox", sandbox),
        ("cgroups", cgroups),
        ("scratch", lambda: folder("scratch", scratch)),
    ]


def python() -> Finding:
    return Finding("OK", "python", f"{platform.python_version()} at {sys.executable}, Linux {platform.release()}")


def user_namespaces() -> Finding:
    """Create a user namespace with the account of sandboxes."""
    from rollyard.host.sandbox_account import sandbox_account

    program = shutil.which("unshare")
    if program is None:
        return Finding("WARN", "user namespaces", "not checked: this machine has no `unshare` (util-linux)")
    done = subprocess.run(
        [program, "--user", "--map-root-user", "true"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False, cwd="/",
        **sandbox_account().credentials,
    )  # fmt: skip
    if done.returncode == 0:
        return Finding("OK", "user namespaces", "an ordinary user can create one; FUSE is not needed")
    advice = [change for path, (bad, change) in _SWITCHES.items() if _read(f"/proc/sys/{path}") == bad]
    words = f"an ordinary user cannot create one ({done.stderr.strip()}); "
    return Finding("FAIL", "user namespaces", words + (" and ".join(advice) or "ask the site to allow them"))


def sandbox() -> Finding:
    """Start a real sandbox and run a command in it."""
    from rollyard.sandbox.base import Limits, SandboxSpec
    from rollyard.sandbox.find_runtime import find_runtime
    from rollyard.sandbox.sandbox_factory import SandboxFactory

    runtime = find_runtime("auto")

    async def try_one() -> str:
        limits = Limits(cpus=1, memory_bytes=2 << 30, disk_bytes=64 << 20)
        async with (
            SandboxFactory(runtime) as sandboxes,
            await sandboxes.start(SandboxSpec(image=None, limits=limits)) as started,
        ):
            return (await started.bash("echo works", 30.0)).output.strip()

    printed = asyncio.run(try_one())
    if printed != "works":
        return Finding("FAIL", "sandbox", f"{runtime.name} started, but bash in it printed {printed!r}")
    words = f"{runtime.name}: a sandbox started and ran a command"
    if runtime.shortage:
        return Finding("WARN", "sandbox", f"{words}; but this node {runtime.shortage}")
    return Finding("OK", "sandbox", f"{words}; tasks can remove and rename all folders of an image")


def cgroups() -> Finding:
    """Report the cgroup's limit on the memory of this process and its children together, and what limits sandboxes."""
    from rollyard.sandbox.cgroups import NoDelegation, delegated

    limit = memory_limit(_read("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    words = "nothing limits the memory of this process and its children"
    if limit is not None:
        words = f"the memory of this process and its children is limited to {limit >> 20} MiB"
    try:
        return Finding("OK", "cgroups", f"{words}; each sandbox gets a cgroup with limits in {delegated()[0]}")
    except NoDelegation as why:
        return Finding("OK", "cgroups", f"{words}; the memory guard limits sandboxes, and no cgroup: {why}")


def memory_limit(own_cgroups: str, root: Path) -> int | None:
    """Return the smallest limit in bytes of a process's cgroup and of the cgroups above it; None without a limit.

    `own_cgroups`: content of `/proc/PID/cgroup`. `root`: folder in which cgroups are mounted. Slurm may limit only the
    cgroup of the job or of the step, and start processes in a cgroup below.
    """
    limits = []
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
            own = Path(path.lstrip("/"))
            limits += [_read(str(top / cgroup / name)) for cgroup in (own, *own.parents)]
    return min((int(limit) for limit in limits if limit.isdecimal() and int(limit) < 1 << 50), default=None)


def folder(what: str, path: Path) -> Finding:
    with tempfile.TemporaryDirectory(prefix="rollyard-doctor-", dir=path) as probe:
        (Path(probe) / "file").write_bytes(os.urandom(1 << 20))
    free = shutil.disk_usage(path).free >> 30
    words = f"{path} can be written, {free} GiB free"
    if free < SCRATCH_GIB:
        return Finding(
            "WARN", what, f"{words}; images are unpacked there, so name a larger folder in spec.allocation.scratch"
        )
    return Finding("OK", what, words)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
