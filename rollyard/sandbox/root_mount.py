"""The means by which this node gives each sandbox a writable root: an overlay of the kernel, or the program fuse-overlayfs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.sandbox_account import sandbox_account
from rollyard.sandbox.base import Limits, Root
from rollyard.sandbox.build_once import build_once
from rollyard.sandbox.gpus import Gpu, node_binds
from rollyard.sandbox.starter.client import Launch, WritableRoot, run_alone

FUSE_PLACES = ("/usr/libexec/apptainer/bin", "/usr/libexec/singularity/bin")
"""Folders in which packages of Apptainer keep a fuse-overlayfs of their own."""
NAMESPACES = (
    "let ordinary users create user namespaces (sysctl user.max_user_namespaces above 0, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0)"
)
LOCAL = "let ROLLYARD_CACHE be a folder on a local disk"
ADVICE = "install fuse-overlayfs, or use a kernel from 6.6 on"
_SECONDS = 30.0
_LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=1 << 20)


@dataclass(frozen=True)
class RootMount:
    place: Path
    """Empty folder, at which the sandbox starter mounts."""
    fuse: str | None = None
    """fuse-overlayfs, if the kernel's overlay is not used."""
    shortage: str = ""
    """End of a sentence about what sandboxes of this node cannot do with an image; empty if they can do all."""

    def of(self, root: Root, limits: Limits, gpus: Sequence[Gpu] = ()) -> WritableRoot:
        """Return what the sandbox starter mounts for one sandbox, with every runtime."""
        self.place.mkdir(parents=True, exist_ok=True)  # a cleaner of old files may have deleted it
        devices = [(source, name.removeprefix("/dev/")) for source, name in node_binds(gpus)]
        return WritableRoot(
            str(self.place),
            list(map(str, root.layers)),
            root.folders,
            limits.disk_bytes,
            limits.files,
            limits.terminals,
            devices,
            self.fuse,
        )


def find_root_mount(cache: Path, env: Mapping[str, str]) -> RootMount:
    """Return the best way that works here, by a try. `env`: environment of launchers. Blocks, for a fraction of a second.

    Raises SandboxStartFailed if nothing works.
    """
    image = build_once(cache / "overlay-probe-1", _make_image)
    kernel = RootMount(build_once(cache / "scratch-1", lambda folder: None))
    refusal = _refusal(kernel, image, env)
    if not refusal:
        return kernel
    search = os.pathsep.join((env["PATH"], *FUSE_PLACES))
    if (program := shutil.which("fuse-overlayfs", path=search)) is not None:
        fuse = replace(kernel, fuse=program)
        if not _refusal(fuse, image, env):
            return fuse
    if refusal.startswith("rm:"):  # the mount itself works
        return replace(kernel, shortage=f"cannot remove or rename folders of images ({refusal}); {ADVICE}")
    raise SandboxStartFailed(
        f"this node cannot mount a writable root for sandboxes ({refusal}): {LOCAL}, {NAMESPACES}, and {ADVICE}"
    )


def _refusal(mount: RootMount, image: Path, env: Mapping[str, str]) -> str:
    """Return why a folder of an image cannot be removed; empty if it can."""
    root = mount.of(Root([image], "own", {"own": 0o755}), _LIMITS)
    try:
        done = run_alone(Launch(["rm", "-r", f"{mount.place}/root/folder"], root), env, _SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stdout.strip()[-300:] or "no reason is known"


def _make_image(folder: Path) -> None:
    account = sandbox_account()
    (folder / "folder").mkdir()
    (folder / "folder" / "file").touch()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.uid, account.gid)
        path.chmod(0o755)
