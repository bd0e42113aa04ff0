"""Sandboxes with Apptainer, the container runtime of clusters. SingularityCE should work with the same options, but is
untested.

A sandbox is always started by `apptainer exec` with a folder as image, in a user namespace. `apptainer instance` is not
used, because an instance would outlive its launcher. A sandbox from a mounted `.sif` leaks a FUSE process when the
sandbox is killed. Only a folder needs neither setuid nor /dev/fuse. Killing the launcher (the process `apptainer exec`)
ends the sandbox. If the node agent dies, the launcher lives on, because making a user namespace clears the launcher's
parent-death signal. In this case the sandbox agent sees the end of its socket and ends the sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.node.memory_guard.sandbox_entry import MountLimits
from rollyard.node.sandbox.base import OWN, Limits, Root
from rollyard.node.sandbox.gpus import Gpu, all_names
from rollyard.node.sandbox_starter.client import Launch

_ISOLATION = (
    "--userns", "--containall", "--no-home", "--cleanenv", "--writable-tmpfs",
    "--hostname", "sandbox", "--no-mount", "sys,bind-paths", "--no-init", "--pwd", "/",
)  # fmt: skip


@dataclass(frozen=True)
class Apptainer:
    program: str
    cache: Path
    name: str = "apptainer"
    own_config: bool = True
    """True if the program accepts our configuration file, which limits the disk. An installation with setuid accepts only
    the site's file. The memory guard sets this limit too, soon after a sandbox's start."""

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
        config = ["-c", str(self._config(limits))] if self.own_config else []
        binds = [part for path in (*root.binds, f"{own}:{OWN}") for part in ("--bind", _read_only(path))]
        # Apptainer makes no /tmp in an image without one.
        lacking = [path for path in ("/tmp", "/var/tmp") if not (root.folder / path[1:]).is_dir()]
        scratch = [part for path in ("/dev/shm", *lacking, *root.empty) for part in ("--scratch", path)]
        network = () if host_network else ("--net", "--network", "none")
        devices = ("--nv",) if gpus else ()  # all GPUs of the node: Apptainer needs root to bind some of them only
        options = [*config, "exec", *_ISOLATION, *network, *devices, *scratch, *binds]
        return Launch([self.program, "-s", *options, str(root.folder), *argv])

    def mount_limits(self, limits: Limits) -> MountLimits:
        return MountLimits(limits.disk_bytes, limits.files, limits.terminals)

    def visible_gpus(self, gpus: Sequence[Gpu]) -> str:
        return all_names(gpus)

    def _config(self, limits: Limits) -> Path:
        """Return our configuration file; write it if it is missing. The file limits the sum of all data that a sandbox
        writes, and allows no binds except ours."""
        megabytes = max(1, limits.disk_bytes >> 20)
        path = self.cache / f"apptainer-{megabytes}.conf"
        if not path.exists():
            helpers = Path(self.program).resolve().parent
            text = (
                f"sessiondir max size = {megabytes}\nmount dev = minimal\nmount home = no\nmount hostfs = no\n"
                f"mount sys = no\nconfig resolv_conf = no\nbinary path = {helpers}:$PATH:\n"
            )
            growing = path.with_suffix(f".{os.getpid()}")
            growing.write_text(text)
            growing.chmod(0o644)
            growing.rename(path)
        return path


def _read_only(bind: str) -> str:
    return f"{bind}:ro" if ":" in bind else f"{bind}:{bind}:ro"
