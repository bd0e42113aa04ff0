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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.removed_folder import remove_folder
from rollyard.host.sandbox_account import sandbox_account
from rollyard.image_builds.copied_files import resolve_in
from rollyard.image_builds.tree_changes import KERNEL_FOLDERS
from rollyard.sandbox.apptainer import Apptainer
from rollyard.sandbox.base import OWN, Runtime
from rollyard.sandbox.bubblewrap import Bubblewrap
from rollyard.sandbox.bundled_python import python_argv
from rollyard.sandbox.find_runtime import LAUNCH_ENVIRONMENT

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
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


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
    root: Path,
    work: Path,
    command: StepCommand,
    network: Network,
    output: int,
    mounts: Mapping[str, Path],
) -> int:
    """Run a command in `root`; return its exit status. `own`: our Python. `work`: an empty folder beside `root`. `output`:
    descriptor that gets all output. `mounts`: path in the root -> file or folder that the command sees there.

    Raises SandboxStartFailed if the runtime cannot be started.
    """
    _check_mount_points(root)
    with contextlib.ExitStack() as held:
        held.enter_context(_name_service(root, work))
        for name in KERNEL_FOLDERS:  # Apptainer makes none
            held.enter_context(_mount_point(root, name, root))
        place = held.enter_context(_mount_point(root, OWN, own))
        binds = {held.enter_context(_mount_point(root, target, path)): path for target, path in mounts.items()}
        argv = _launcher(runtime, own, place, root, network, binds)
        process = await _started([*argv, *python_argv(own, "rollyard.sandbox_agent.build_step")], output)
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
                program, "-s", "exec", "--userns", "--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command", "--writable",
                "--containall", "--no-home", "--cleanenv", "--no-mount", "sys,bind-paths,tmp,home,hostfs", "--no-init",
                *(["--net", "--network", "none"] if network == "none" else []), "--pwd", "/",
                *_bind(f"{own}:{place}:ro"), *(word for target, path in binds.items() for word in _bind(f"{path}:{target}")),
                str(root),
            ]  # fmt: skip
    raise SandboxStartFailed(f"{runtime.name} cannot build images: choose bubblewrap or apptainer")


def _bind(value: str) -> tuple[str, str]:
    return "--bind", value


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
    """Let the root have this machine's name servers and host names for a while. The command may move the folder and put a
    symbolic link in its place: so all is done through a descriptor of the folder itself."""
    try:
        etc = os.open(root / "etc", _FOLDER)
    except OSError:
        yield
        return
    kept = work / "etc"
    kept.mkdir()
    try:
        for name in _NAME_SERVICE:
            with contextlib.suppress(FileNotFoundError):
                os.rename(name, kept / name, src_dir_fd=etc)
            with contextlib.suppress(OSError):
                text = Path("/etc", name).read_bytes()
                _write_new(etc, name, text + _OWN_HOST if name == "hosts" else text)
        yield
    finally:
        _let_owner_change(etc)
        for name in _NAME_SERVICE:
            _remove(etc, name, kept / f"{name}.new")
            with contextlib.suppress(FileNotFoundError):  # none was kept, or the command has deleted the folder
                os.rename(kept / name, name, dst_dir_fd=etc)
        os.close(etc)
        remove_folder(kept)


@contextlib.contextmanager
def _mount_point(root: Path, target: str, shown: Path) -> Iterator[str]:
    """Let the root have a place for a while where a file or a folder, `shown`, is mounted. Yield its path in the root, without
    symbolic links."""
    account, place = sandbox_account(), resolve_in(os.fspath(root), target)
    if any(sign in place for sign in _SPECIAL):
        raise SandboxStartFailed(f"nothing can be mounted at {place!r} of the image: choose a path without , : and \\")
    made: list[tuple[int, str, int]] = []
    """(descriptor of the folder above, name, inode)."""
    with contextlib.ExitStack() as descriptors:

        def opened(path: str | Path, flags: int, above: int | None = None) -> int:
            descriptor = os.open(path, flags, 0o644, dir_fd=above)
            descriptors.callback(os.close, descriptor)
            return descriptor

        above, parts = opened(root, _FOLDER), [part for part in place.split("/") if part]
        for number, part in enumerate(parts, 1):
            is_folder = number < len(parts) or shown.is_dir()
            try:
                if is_folder:
                    os.mkdir(part, 0o755, dir_fd=above)
                    below = opened(part, _FOLDER, above)
                else:
                    below = opened(part, _NEW_FILE, above)
            except FileExistsError:
                below = opened(part, _FOLDER if is_folder else os.O_PATH | os.O_NOFOLLOW, above)
            else:
                os.fchmod(below, 0o755 if is_folder else 0o644)
                os.fchown(below, account.uid, account.gid)
                made.append((above, part, os.fstat(below).st_ino))
            above = below
        try:
            yield f"/{place}"
        finally:
            for above, name, inode in reversed(made):
                with contextlib.suppress(OSError):
                    _let_owner_change(above)
                    info = os.stat(name, dir_fd=above, follow_symlinks=False)
                    if info.st_ino == inode:
                        (os.rmdir if stat.S_ISDIR(info.st_mode) else os.unlink)(name, dir_fd=above)


def _check_mount_points(root: Path) -> None:
    """Raise SandboxStartFailed if a runtime would follow a symbolic link of the root to the place of a mount."""
    for name in KERNEL_FOLDERS:
        path = root / name
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            what = "a symbolic link" if path.is_symlink() else "a file"
            raise SandboxStartFailed(f"/{name} of the image is {what}: it must be a folder, or absent, for a RUN")


def _write_new(folder: int, name: str, data: bytes) -> None:
    account = sandbox_account()
    with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder), "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        os.fchown(file.fileno(), account.uid, account.gid)
        file.write(data)


def _let_owner_change(folder: int) -> None:
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & 0o700 != 0o700:
        os.fchmod(folder, mode | 0o700)


def _remove(folder: int, name: str, aside: Path) -> None:
    """Take what has the name out of the folder, and no target of a symbolic link. A folder is moved to `aside`."""
    try:
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return
    if is_folder:
        os.chmod(name, 0o700, dir_fd=folder)  # without this its owner cannot move it
        os.rename(name, aside, src_dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)
