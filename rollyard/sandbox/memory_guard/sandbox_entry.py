"""A short-lived process inside a sandbox's namespaces. It opens a socket and a file through which the memory guard sees the
sandbox's sockets and its System V memory.

The user who started a sandbox owns its user namespace, so a process of this user may enter the namespace and has all
capabilities there (user_namespaces(7)). Only a process with one thread can enter, and it cannot return; so the guard
forks. Nothing from the sandbox's image is run.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass

_LIBC = ctypes.CDLL(None, use_errno=True)
_NETLINK_SOCK_DIAG = 4
_NS_GET_USERNS = 0xB701


@dataclass(frozen=True)
class Entered:
    sockets: socket.socket | None
    """Netlink socket of the sandbox's network namespace (sock_diag(7)); None in the node's own network."""
    segments: int | None
    """Descriptor of the list of the sandbox's System V segments (proc(5)); None if the sandbox has the node's."""


def enter(sandbox_agent: int) -> Entered:
    """Enter the namespaces. `sandbox_agent`: its process id. Raises OSError if the sandbox has ended or cannot be
    entered."""
    with ExitStack() as stack:
        namespaces = {}
        for name in ("net", "ipc"):
            found = os.open(f"/proc/{sandbox_agent}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, found)
            if os.fstat(found).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
                namespaces[name] = found  # else it is the node's and not the sandbox's
        if not namespaces:
            return Entered(None, None)
        # The sandbox agent's own user namespace is below the owner of the other namespaces.
        owner = fcntl.ioctl(next(iter(namespaces.values())), _NS_GET_USERNS)
        stack.callback(os.close, owner)
        ours, its = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        pid = os.fork()
        if pid == 0:
            try:
                _work(its, owner, namespaces)
            finally:
                os._exit(0)
        its.close()
        sockets = segments = error = None
        try:
            while True:
                text, fds, _, _ = socket.recv_fds(ours, 64, 1)
                if text == b"segments":
                    segments = fds[0]
                elif fds:
                    sockets = socket.socket(fileno=fds[0])
                elif text:
                    error = int(text)
                else:
                    break
        finally:
            os.waitpid(pid, 0)
        if error is not None:
            for opened in (sockets.detach() if sockets is not None else None, segments):
                if opened is not None:
                    os.close(opened)
            raise OSError(error, f"its namespaces cannot be entered: {os.strerror(error)}")
        return Entered(sockets, segments)


def _work(caller: socket.socket, owner: int, namespaces: dict[str, int]) -> None:
    """Run in the child process."""
    try:
        _setns(owner)
        if "net" in namespaces:
            _setns(namespaces["net"])
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
                socket.send_fds(caller, [b"sockets"], [diag.fileno()])
        if "ipc" in namespaces:
            _setns(namespaces["ipc"])
            # the kernel shows the namespace of who opens it
            with open("/proc/sysvipc/shm", "rb", buffering=0) as segments:
                socket.send_fds(caller, [b"segments"], [segments.fileno()])
    except OSError as error:
        caller.send(str(error.errno).encode())


def _setns(namespace: int) -> None:
    if _LIBC.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
