"""The container in which a RUN is done: a writable root file system, without root on this machine.

The command runs as user 0 of a user namespace with this one user (`sandbox_agent/build_step.py`), with processes of its own,
and with this machine's network or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rollyard.core.errors import SandboxStartFailed
from rollyard.core.sandbox_account import sandbox_account
from rollyard.node.image_builds.copied_files import resolve_in
from rollyard.node.sandbox.apptainer import Apptainer
from rollyard.node.sandbox.base import OWN, Runtime
from rollyard.node.sandbox.bubblewrap import Bubblewrap
from rollyard.node.sandbox.bundled_python import python_argv
from rollyard.node.sandbox.find_runtime import LAUNCH_ENVIRONMENT

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


@dataclass(frozen=True)
class StepCommand:
    argv: Sequence[str]
    env: Mapping[str, str]
    folder: str
    script: str | None = None
    """Text of a file that `argv` runs: /dev/rollyard-step."""


async def run_step(
    runtime: Runtime, own: Path, root: Path, work: Path, command: StepCommand, network: Network, output: int
) -> int:
    """Run a command in `root`; return its exit status. `own`: our Python. `work`: an empty folder beside `root`. `output`:
    descriptor that gets all output.

    Raises SandboxStartFailed if the runtime cannot be started.
    """
    with _name_service(root, work), _mount_point(root):
        argv = _launcher(runtime, own, root, network)
        process = await _started([*argv, *python_argv(own, "rollyard.sandbox_agent.build_step")], output)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(json.dumps(asdict(command)).encode() + b"\n")
                await process.stdin.drain()
            return await process.wait()
        finally:
            await _end(process)


def _launcher(runtime: Runtime, own: Path, root: Path, network: Network) -> list[str]:
    match runtime:
        case Bubblewrap(program=program):
            return [
                program, "--unshare-user", "--uid", "0", "--gid", "0", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
                "--unshare-cgroup-try", *(["--unshare-net"] if network == "none" else []), "--hostname", HOST,
                "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", *_CAPABILITIES, "--bind", str(root), "/",
                "--ro-bind", str(own), OWN, "--proc", "/proc", "--dev", "/dev", "--chdir", "/", "--",
            ]  # fmt: skip
        case Apptainer(program=program):
            return [
                program, "-s", "exec", "--userns", "--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command", "--writable",
                "--containall", "--no-home", "--cleanenv", "--no-mount", "sys,bind-paths,tmp,home,hostfs", "--no-init",
                *(["--net", "--network", "none"] if network == "none" else []), "--pwd", "/", "--bind", f"{own}:{OWN}:ro",
                str(root),
            ]  # fmt: skip
    raise SandboxStartFailed(f"{runtime.name} cannot build images: choose bubblewrap or apptainer")


async def _started(argv: Sequence[str], output: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd="/", env=LAUNCH_ENVIRONMENT,
            start_new_session=True, **sandbox_account().credentials,
        )  # fmt: skip
    except OSError as error:
        raise SandboxStartFailed(f"{argv[0]} cannot be started: {error.strerror}") from None


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


@contextlib.contextmanager
def _name_service(root: Path, work: Path) -> Iterator[None]:
    """Let the root have this machine's name servers and host names for a while. No symbolic link is followed: nothing
    else changes the root meanwhile."""
    etc = root / "etc"
    if not etc.is_dir() or etc.is_symlink():
        yield
        return
    kept = work / "etc"
    kept.mkdir()
    account = sandbox_account()
    for name in _NAME_SERVICE:
        if os.path.lexists(etc / name):
            os.rename(etc / name, kept / name)
        with contextlib.suppress(OSError):
            text = Path("/etc", name).read_bytes()
            (etc / name).write_bytes(text + _OWN_HOST if name == "hosts" else text)
            (etc / name).chmod(0o644)
            os.chown(etc / name, account.uid, account.gid)
    try:
        yield
    finally:
        for name in _NAME_SERVICE:
            _remove(etc / name)
            if os.path.lexists(kept / name):
                os.rename(kept / name, etc / name)
        shutil.rmtree(kept, ignore_errors=True)


@contextlib.contextmanager
def _mount_point(root: Path) -> Iterator[None]:
    """Let the root have the folder of our Python for a while."""
    account, made = sandbox_account(), []
    place = root
    for part in resolve_in(os.fspath(root), OWN).split("/"):
        place = place / part
        if not place.exists():
            place.mkdir()
            place.chmod(0o755)
            os.chown(place, account.uid, account.gid)
            made.append(place)
    try:
        yield
    finally:
        for place in reversed(made):
            with contextlib.suppress(OSError):
                place.rmdir()


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
