"""The sandbox starter: a small process with one thread that starts the launchers of sandboxes.

The node agent is large, so a fork of it takes long. And the tmpfs around bubblewrap would take four more programs. This
process has both done in a millisecond.

A launcher is a child of the node agent, not of this process (CLONE_PARENT of clone(2)). So the end of this process ends
no sandbox, and the node agent waits for its launchers as for any child. This process ends when the node agent does, and
ends what is left of its sandboxes: if bwrap dies before it has set up its child, the child waits for it for ever.

Standard input is a socket of the node agent. Each packet is a request with the launcher's standard input and its output;
the answer is the launcher's process id. The file imports nothing of ours, because it runs alone (`-I -S`), which takes half
the time and memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
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
ROUNDS, ROUND_SECONDS = 100, 0.05
"""Number of looks for processes at the end, and the pause between two of them."""
_CLONE = 56 if platform.machine() == "x86_64" else 220
_CLONE3 = 435
_CLONE_PARENT, _CLONE_INTO_CGROUP = 0x8000, 0x200000000
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_PR_SET_DUMPABLE = 4
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
    pid = _fork_into(request["cgroup"]) if request["cgroup"] else _fork()
    if pid == 0:
        try:
            _become_launcher(request, stdin, output)
        except OSError as error:
            _say(request, error)
        finally:
            os._exit(127)
    return pid


def _fork() -> int:
    return _checked("clone", _LIBC.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, None, None, None, None))


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
    if request["scratch"] is not None:
        _mount_scratch(**request["scratch"])
    os.execvpe(request["argv"][0], request["argv"], request["env"])


def _end_before_node_agent() -> None:
    """Undo what the node agent has set for itself. If root sets the value, no process of the sandbox can lower it."""
    with open("/proc/self/oom_score_adj", "r+") as score:
        if int(score.read()) < 0:
            score.write("0")


def _mount_scratch(path: str, size: int, inodes: int, terminals: int, folders: list[str]) -> None:
    """Mount a tmpfs at `path`, in a mount namespace of this process, with `folders` and a folder of pseudo-terminals."""
    uid, gid = os.geteuid(), os.getegid()
    _checked("unshare", _LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
    for name, content in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("sandbox", path, "tmpfs", options=f"size={size},nr_inodes={inodes},mode=755")
    for folder in ("terminals", *folders):
        os.mkdir(f"{path}/{folder}")
    _mount("devpts", f"{path}/terminals", "devpts", options=f"newinstance,ptmxmode=0666,mode=620,max={terminals}")


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
