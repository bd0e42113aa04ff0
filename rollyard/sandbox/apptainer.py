"""Sandboxes with Apptainer, the container runtime of clusters. SingularityCE should work with the same options, but is
untested.

A sandbox is always started by `apptainer exec` with a folder as image, in a user namespace. `apptainer instance` is not
used, because an instance would outlive its launcher. A sandbox from a mounted `.sif` leaks a FUSE process when the
sandbox is killed. Only a folder needs neither setuid nor /dev/fuse. Killing the launcher (the process `apptainer exec`)
ends the sandbox. If the node agent dies, the launcher lives on, because making a user namespace clears the launcher's
parent-death signal. In this case the sandbox agent sees the end of its socket and ends the sandbox.

The sandbox starter mounts the writable root. With Apptainer's own `--writable-tmpfs` and `--overlay` no folder of the image
could be removed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.sandbox.base import Limits, Root
from rollyard.sandbox.gpus import Gpu
from rollyard.sandbox.root_mount import RootMount
from rollyard.sandbox.starter.client import Launch

_ISOLATION = (
    "--userns", "--containall", "--no-home", "--cleanenv", "--writable",
    "--no-mount", "dev,sys,tmp,home,hostfs,bind-paths", "--no-init", "--pwd", "/",
)  # fmt: skip


@dataclass(frozen=True)
class Apptainer:
    program: str
    cache: Path
    mount: RootMount
    name: str = "apptainer"
    own_config: bool = True
    """True if the program accepts our configuration file. An installation with setuid accepts only the site's file, and mounts
    files of its own at /etc/passwd and /etc/group."""

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
        binds = [f"{path}:{path}:ro" for path in (*root.binds, "/proc/sys")]
        binds += [f"{own}:/{root.own}:ro", f"{self.mount.place}/dev:/dev"]
        network = () if host_network else ("--net", "--network", "none")
        libraries = ("--nv",) if gpus else ()
        bound = [part for one in binds for part in ("--bind", one)]
        options = [*self.configured(), "exec", *_ISOLATION, *network, *libraries, *bound]
        launcher = [self.program, "-s", *options, str(self.mount.place / "root"), *argv]
        return Launch(launcher, self.mount.of(root, limits, gpus))

    def configured(self) -> tuple[str, ...]:
        """Return the options that name our configuration file, if the program accepts it."""
        return ("-c", str(self._config())) if self.own_config else ()

    def _config(self) -> Path:
        """Return our configuration file; write it if it is missing. All files of /etc are the image's."""
        path = self.cache / "apptainer-1.conf"
        if not path.exists():
            helpers = Path(self.program).resolve().parent
            text = (
                "config passwd = no\nconfig group = no\nconfig resolv_conf = no\nmount home = no\nmount hostfs = no\n"
                f"mount sys = no\nbinary path = {helpers}:$PATH:\n"
            )
            growing = path.with_suffix(f".{os.getpid()}")
            growing.write_text(text)
            growing.chmod(0o644)
            growing.rename(path)
        return path
