"""The container in which a RUN is done: a writable root file system, without root on this machine.

The command runs as user 0 of a user namespace with this one user (`sandbox_agent/build_step.py`), with processes of its own,
and with this machine's network or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rollyard.core.errors import SandboxStartFailed
from rollyard.image_builds.step_root import StepRoot
from rollyard.image_builds.tree_changes import KERNEL_FOLDERS
from rollyard.images.layer_stack import LayerStack
from rollyard.sandbox.apptainer import Apptainer
from rollyard.sandbox.base import OWN, Runtime
from rollyard.sandbox.bubblewrap import Bubblewrap
from rollyard.sandbox.bundled_python import python_argv
from rollyard.sandbox.find_runtime import LAUNCH_ENVIRONMENT
from rollyard.sandbox.starter.client import Launch, alone

Network = Literal["host", "none"]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_OVER = ("etc/resolv.conf", "etc/hosts", OWN.strip("/"))
"""Paths of a root that belong to the container, not to the image."""
END_SECONDS = 5.0
_CAPABILITIES = tuple(
    word
    for name in (
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "SETGID",
        "SETUID",
        "SETPCAP",
        "SETFCAP",
        "SYS_CHROOT",
    )
    for word in ("--cap-add", f"CAP_{name}")
)
"""Capabilities that root has in the container, over what belongs to it. Without them dpkg cannot write a file of mode 0440.
bubblewrap takes all others away."""
HOST = "build"
"""Name of the container's machine."""
_OWN_HOST = f"\n127.0.1.1 {HOST}\n".encode()
_NAME_SERVICE = ("resolv.conf", "hosts")
_SPECIAL = ",:\\\n"
"""Signs that Apptainer reads as the start of another mount, which could show any folder of this machine."""


@dataclass(frozen=True)
class StepCommand:
    argv: Sequence[str]
    env: Mapping[str, str]
    folder: str
    script: str | None = None
    """Text of a file that `argv` runs: /dev/rollyard-step."""
    certificates: str | None = None
    """CA certificates that programs trust while the command runs."""


async def run_step(
    runtime: Runtime,
    own: Path,
    root: StepRoot,
    command: StepCommand,
    network: Network,
    output: int,
    mounts: Mapping[str, Path],
) -> int:
    """Run a command in `root`; return its exit status. `own`: our Python. `output`: descriptor that gets all output.
    `mounts`: path in the root -> file or folder that the command sees there.

    Raises SandboxStartFailed if the runtime cannot be started.
    """
    _check_mount_points(root.files)
    _show_name_service(root)
    for name in KERNEL_FOLDERS:  # Apptainer makes none
        root.mount_point(name, own)
    place = _mount_point(root, OWN, own)
    binds = {_mount_point(root, target, path): path for target, path in mounts.items()}
    argv = [
        *_launcher(runtime, own, place, root.path, network, binds),
        *python_argv(own, "rollyard.sandbox_agent.build_step"),
    ]
    process = await _started(Launch(argv, overlay=root.overlay), output)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(json.dumps(asdict(command)).encode() + b"\n")
            await process.stdin.drain()
        return await process.wait()
    finally:
        await _end(process)


def _launcher(
    runtime: Runtime, own: Path, place: str, root: Path, network: Network, binds: Mapping[str, Path]
) -> list[str]:
    match runtime:
        case Bubblewrap(program=program):
            return [
                program, "--unshare-user", "--uid", "0", "--gid", "0", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
                "--unshare-cgroup-try", *(["--unshare-net"] if network == "none" else []), "--hostname", HOST,
                "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", *_CAPABILITIES, "--bind", str(root), "/",
                "--ro-bind", str(own), place, "--proc", "/proc", "--dev", "/dev",
                *(word for target, path in binds.items() for word in ("--bind", str(path), target)), "--chdir", "/", "--",
            ]  # fmt: skip
        case Apptainer(program=program):
            return [
                program, "-s", *runtime.configured(), "exec", "--userns", "--fakeroot", "--ignore-subuid",
                "--ignore-fakeroot-command", "--writable",
                "--containall", "--no-home", "--cleanenv", "--no-mount", "sys,bind-paths,tmp,home,hostfs", "--no-init",
                *(["--net", "--network", "none"] if network == "none" else []), "--pwd", "/",
                *_bind(f"{own}:{place}:ro"), *(word for target, path in binds.items() for word in _bind(f"{path}:{target}")),
                str(root),
            ]  # fmt: skip
    raise SandboxStartFailed(f"{runtime.name} cannot build images: choose bubblewrap or apptainer")


def _bind(value: str) -> tuple[str, str]:
    return "--bind", value


async def _started(launch: Launch, output: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *alone(launch, LAUNCH_ENVIRONMENT), stdin=subprocess.PIPE, stdout=output, stderr=output, cwd="/",
            env=LAUNCH_ENVIRONMENT,
        )  # fmt: skip
    except OSError as error:
        raise SandboxStartFailed(f"{launch.argv[0]} cannot be started: {error.strerror}") from None


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the container. Process 1 in it ends with the pipe."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _show_name_service(root: StepRoot) -> None:
    """Let the command find this machine's name servers and host names."""
    for name in _NAME_SERVICE:
        with contextlib.suppress(OSError):
            text = Path("/etc", name).read_bytes()
            root.show("etc", name, text + _OWN_HOST if name == "hosts" else text)


def _mount_point(root: StepRoot, target: str, shown: Path) -> str:
    place = root.mount_point(target, shown)
    if any(sign in place for sign in _SPECIAL):
        raise SandboxStartFailed(
            f"nothing can be mounted at {place[1:]!r} of the image: choose a path without , : and \\"
        )
    return place


def _check_mount_points(files: LayerStack) -> None:
    """Raise SandboxStartFailed if a runtime would follow a symbolic link of the root to the place of a mount."""
    for name in KERNEL_FOLDERS:
        path = files.find(name.encode())
        if path is not None and not stat.S_ISDIR(os.lstat(path).st_mode):
            what = "a symbolic link" if os.path.islink(path) else "a file"
            raise SandboxStartFailed(f"/{name} of the image is {what}: it must be a folder, or absent, for a RUN")
