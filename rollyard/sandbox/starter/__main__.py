"""The sandbox starter: a small process with one thread that starts the launchers of sandboxes.

The node agent is large, so a fork of it takes long. And the mounts around a sandbox would take a dozen more programs. This
process has both done in a few milliseconds.

A launcher is a child of the node agent, not of this process (CLONE_PARENT of clone(2)). So the end of this process ends
no sandbox, and the node agent waits for its launchers as for any child. This process ends when the node agent does, and
ends what is left of its sandboxes: if bwrap dies before it has set up its child, the child waits for it for ever.

Standard input is a socket of the node agent. Each packet is a request with the launcher's standard input and its output;
the answer is the launcher's process id. The file imports nothing of ours, because it runs alone (`-I -S`), which takes half
the time and memory.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NoReturn

MAX_BYTES = 1 << 17
MOST_INPUTS = 4096
"""Number of launchers, the last ones, whose processes are sought at the end."""
MOUNT_SECONDS = 10.0
ROUNDS, ROUND_SECONDS = 100, 0.05
"""Number of looks for processes at the end, and the pause between two of them."""
_CLONE = 56 if platform.machine() == "x86_64" else 220
_CLONE3 = 435
_CLONE_PARENT, _CLONE_INTO_CGROUP = 0x8000, 0x200000000
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER = 0x20000, 0x4000000, 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 32, 0x1000, 0x4000, 0x40000
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
          "core": "/proc/kcore", "ptmx": "pts/ptmx"}  # fmt: skip
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 1, 4, 47, 2
_CAP_SYS_ADMIN, _CAPABILITY_VERSION_3 = 21, 0x20080522
# PyDLL keeps the interpreter's lock, so the child of a clone has it too.
_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def main() -> None:
    owner = socket.socket(fileno=os.dup(0))
    inputs: deque[str] = deque(maxlen=MOST_INPUTS)
    while True:
        packet, fds, _, _ = socket.recv_fds(owner, MAX_BYTES, 2)
        if not packet:
            return _end_processes(inputs)
        inputs.append(os.readlink(f"/proc/self/fd/{fds[0]}"))
        answer: dict[str, Any]
        try:
            answer = {"pid": _start(json.loads(packet), *fds)}
        except OSError as error:
            answer = {"error": error.strerror}
        for fd in fds:
            os.close(fd)
        try:
            owner.send(json.dumps(answer).encode())
        except ConnectionError:
            return _end_processes(inputs)


def _end_processes(inputs: Iterable[str]) -> None:
    """Kill the processes whose standard input is one of these sockets, as long as there are any. No other sandbox has them."""
    sockets = {name for name in inputs if name.startswith("socket:")}
    for _ in range(ROUNDS if sockets else 0):
        found = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _standard_input(pid) in sockets]
        if not found:
            return
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(ROUND_SECONDS)


def _standard_input(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/fd/0")
    except OSError:  # it has ended, or is another user's
        return None


def run_alone(request: dict[str, Any]) -> NoReturn:
    """Run the launcher in this process, with this process's standard input and output."""
    try:
        _become_launcher(request, 0, 1)
    except OSError as error:
        _say(request, error)
    os._exit(127)


def _start(request: dict[str, Any], stdin: int, output: int) -> int:
    """Start the launcher; return its process id. An error in the launcher is written to its output."""
    pid = (
        _fork_into(request["cgroup"])
        if request["cgroup"]
        else _checked("clone", _LIBC.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, None, None, None, None))
    )
    if pid == 0:
        try:
            _become_launcher(request, stdin, output)
        except OSError as error:
            _say(request, error)
        finally:
            os._exit(127)
    return pid


def _fork_into(cgroup: str) -> int:
    """Fork, with the child in a cgroup from its start. To move a process later takes the kernel milliseconds."""
    folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # struct clone_args of clone(2): only its first and its last field are set. The signal at the end is ours.
        arguments = struct.pack("=11Q", _CLONE_PARENT | _CLONE_INTO_CGROUP, *[0] * 9, folder)
        return _checked(f"clone into {cgroup}", _LIBC.syscall(_CLONE3, arguments, len(arguments)))
    finally:
        os.close(folder)


def _say(request: dict[str, Any], error: OSError) -> None:
    os.write(2, f"{error.filename or request['argv'][0]}: {error.strerror}\n".encode())


def _become_launcher(request: dict[str, Any], stdin: int, output: int) -> None:
    for fd, place in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(fd, place)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.setsid()
    os.chdir("/")
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    _end_before_node_agent()
    if request["account"] is not None:
        uid, gid = request["account"]
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        # the change made the files in /proc/self root's
        _checked("prctl", _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))
    if request["root"] is not None:
        _mount_root(**request["root"])
    if request["overlay"] is not None:
        _mount_overlay(**request["overlay"])
    os.execvpe(request["argv"][0], request["argv"], request["env"])


def _end_before_node_agent() -> None:
    """Undo what the node agent has set for itself. If root sets the value, no process of the sandbox can lower it."""
    with open("/proc/self/oom_score_adj", "r+") as score:
        if int(score.read()) < 0:
            score.write("0")


def _enter_namespaces() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _checked("unshare", _LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWUTS))
    for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)


def _mount_overlay(folder: str, options: str, fuse: str | None) -> None:
    """Mount an overlay at the folder's `root`, in a mount namespace of this process. Paths in the options are below it."""
    _enter_namespaces()
    os.chdir(folder)
    _mount_layers(options, fuse)
    os.chdir("/")


def _mount_layers(options: str, fuse: str | None) -> None:
    """Mount an overlay at `root`."""
    if fuse is None:
        # In a user namespace the kernel keeps the marks of removed folders only as `user.` attributes. Without this option the
        # removal of a folder of the image fails with EIO.
        _mount("sandbox", "root", "overlay", options=f"{options},userxattr")
    else:
        _mount_by(fuse, options)


def _mount_root(
    place: str,
    layers: list[str],
    folders: dict[str, int],
    size: int,
    inodes: int,
    terminals: int,
    devices: list[tuple[str, str]],
    fuse: str | None,
) -> None:
    """Mount a tmpfs at `place`, and in it the sandbox's root and devices, in a mount namespace of this process."""
    _enter_namespaces()
    # One for the runtime and one for the sandbox agent. A seccomp filter too keeps the task from making more.
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("2")
    socket.sethostname("sandbox")
    _mount("sandbox", place, "tmpfs", options=f"size={size},nr_inodes={inodes},mode=755")
    umask = os.umask(0o022)
    os.chdir(place)  # no path of this machine is in the options of the mounts, which the sandbox can read
    for name in ("lacking", "changed", "work", "root", "dev"):
        os.mkdir(name)
    names = [f"{number:x}" for number in range(len(layers))]  # the options of a mount end at a page
    for name, layer in zip(names, layers, strict=True):
        os.symlink(layer, name)
    for folder, mode in folders.items():
        os.makedirs(f"lacking/{folder}", exist_ok=True)
        os.chmod(f"lacking/{folder}", mode)
    for name in ("proc", "dev"):
        found = next((place for layer in names if os.path.lexists(place := f"{layer}/{name}")), None)
        if found is None or os.path.islink(found) or not os.path.isdir(found):
            os.mkdir(f"changed/{name}")  # in place of a link or a file, on which nothing can be mounted
    options = f"lowerdir={':'.join(names)}:lacking,upperdir=changed,workdir=work"
    _mount_layers(options, fuse)
    for folder, mode in folders.items():
        if not os.path.isdir(f"root/{folder}"):  # a layer hides it, also from what lies below all layers
            os.makedirs(f"root/{folder}")
            os.chmod(f"root/{folder}", mode)
    _make_devices(terminals, [*((f"/dev/{name}", name) for name in _DEVICES), *devices])
    os.chdir("/")
    os.umask(umask)


def _mount_by(program: str, options: str) -> None:
    """Mount the overlay by a process of fuse-overlayfs, which ends when this process, the launcher, ends."""
    before = os.stat("root").st_dev
    launcher = os.pidfd_open(os.getpid())
    watcher = os.fork()
    if watcher == 0:
        try:
            _serve_while(launcher, program, options)
        finally:
            os._exit(127)
    os.close(launcher)
    deadline = time.monotonic() + MOUNT_SECONDS
    while os.stat("root").st_dev == before:
        if os.waitpid(watcher, os.WNOHANG)[0] or time.monotonic() > deadline:
            raise OSError(errno.EIO, "it mounts nothing", program)
        time.sleep(0.001)


def _serve_while(launcher: int, program: str, options: str) -> None:
    """Run fuse-overlayfs until it or the launcher ends. The death of the launcher's thread would be no sign: Apptainer ends
    its first thread."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)  # the sandbox's socket belongs to the sandbox alone
    served = os.fork()
    if served == 0:
        try:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _keep_right_to_mount()
            os.execv(program, [program, "-f", "-o", options, "root"])
        finally:
            os._exit(127)
    poll = select.poll()
    for handle in (launcher, os.pidfd_open(served)):
        poll.register(handle, select.POLLIN)
    poll.poll()
    os.kill(served, signal.SIGKILL)


def _keep_right_to_mount() -> None:
    """Let the next program have CAP_SYS_ADMIN in this user namespace, although it is not root there (capabilities(7))."""
    mask = 1 << _CAP_SYS_ADMIN
    sets = struct.pack("6I", mask, mask, mask, 0, 0, 0)
    _checked("capset", _LIBC.capset(struct.pack("II", _CAPABILITY_VERSION_3, 0), sets))
    _checked("prctl", _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_SYS_ADMIN, 0, 0))


def _make_devices(terminals: int, devices: list[tuple[str, str]]) -> None:
    """Fill the folder `dev`. Only shared memory and terminals in it can be written."""
    for name in ("shm", "dev/shm", "dev/pts"):
        os.mkdir(name)
    os.chmod("shm", 0o1777)
    for name, target in _LINKS.items():
        os.symlink(target, f"dev/{name}")
    for source, name in devices:
        os.close(os.open(f"dev/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        _mount(source, f"dev/{name}", None, _MS_BIND)
    _mount("dev", "dev", None, _MS_BIND | _MS_REC)
    _mount("none", "dev", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID)
    _mount("shm", "dev/shm", None, _MS_BIND)
    options = f"newinstance,ptmxmode=0666,mode=620,max={terminals}"
    _mount("devpts", "dev/pts", "devpts", _MS_NOSUID, options)


def _mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    words = (word and word.encode() for word in (source, target, kind))
    _checked(
        f"mount {target}", _LIBC.mount(*words, ctypes.c_ulong(flags), None if options is None else options.encode())
    )


def _checked(call: str, answer: int) -> int:
    if answer == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)
    return answer


if __name__ == "__main__":
    # The terminal's Ctrl-C and the job's SIGTERM are for the node agent.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if len(sys.argv) > 1:
        run_alone(json.loads(sys.argv[1]))
    main()
