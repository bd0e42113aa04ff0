"""A short-lived process inside a sandbox's namespaces. It limits what the sandbox's runtime cannot limit, and opens a
socket through which the memory guard sees the sandbox's sockets.

The user who started a sandbox owns its user namespace, so a process of this user may enter the namespace and has all
capabilities there (user_namespaces(7)). Only a process with one thread can enter, and it cannot return; so the guard
forks. Nothing from the sandbox's image is run.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from rollyard.node.memory_guard.process_memory import own_devices

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_REMOUNT = 32
_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048}
_NETLINK_SOCK_DIAG = 4
_NS_GET_USERNS = 0xB701


@dataclass(frozen=True)
class MountLimits:
    """Limits of a sandbox's tmpfs and devpts mounts."""

    bytes: int
    inodes: int
    terminals: int


@dataclass(frozen=True)
class Entered:
    sockets: socket.socket | None
    """Netlink socket of the sandbox's network namespace (sock_diag(7)); None in the node's own network."""
    failures: tuple[str, ...]


def enter(agent: int, limits: MountLimits | None) -> Entered:
    """Set the limits, and return the socket. `agent`: process id of the sandbox agent. Raises OSError if the sandbox has
    ended or cannot be entered."""
    with ExitStack() as stack:
        namespaces = {}
        for name in ("net", "mnt"):
            namespaces[name] = os.open(f"/proc/{agent}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, namespaces[name])
        if os.fstat(namespaces["net"]).st_ino == os.stat("/proc/self/ns/net").st_ino:
            del namespaces["net"]  # the sockets of the node are not the sandbox's
        # With bubblewrap the sandbox agent's own user namespace is below the owner of the other namespaces.
        namespaces["user"] = fcntl.ioctl(namespaces.get("net", namespaces["mnt"]), _NS_GET_USERNS)
        stack.callback(os.close, namespaces["user"])
        remounts = list(_remounts(agent, limits)) if limits is not None else []
        ours, its = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        pid = os.fork()
        if pid == 0:
            try:
                _work(its, namespaces, remounts)
            finally:
                os._exit(0)
        its.close()
        found, failures = None, []
        try:
            while True:
                text, fds, _, _ = socket.recv_fds(ours, 4096, 1)
                if fds:
                    found = socket.socket(fileno=fds[0])
                elif text:
                    failures.append(text.decode(errors="replace"))
                else:
                    return Entered(found, tuple(failures))
        finally:
            os.waitpid(pid, 0)


def _work(owner: socket.socket, namespaces: dict[str, int], remounts: list[tuple[str, int, str]]) -> None:
    """Run in the child process."""
    try:
        _setns(namespaces["user"])
        if "net" in namespaces:
            _setns(namespaces["net"])
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
                socket.send_fds(owner, [b"sockets"], [diag.fileno()])
        if remounts:
            _setns(namespaces["mnt"])
    except OSError as error:
        owner.send(f"its namespaces cannot be entered: {error.strerror}".encode())
        return
    for place, flags, data in remounts:
        if _LIBC.mount(b"none", place.encode(), None, ctypes.c_ulong(flags), data.encode()):
            owner.send(f"{place} does not get {data}: {os.strerror(ctypes.get_errno())}".encode())


def _setns(namespace: int) -> None:
    if _LIBC.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _remounts(agent: int, limits: MountLimits) -> Iterator[tuple[str, int, str]]:
    """Yield place, flags and data of one remount for each tmpfs and devpts that the sandbox sees and the node does not."""
    seen = set(own_devices())
    with suppress(OSError), open(f"/proc/{agent}/mountinfo", errors="replace") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            _, _, device, _, place, options, *_ = before.split(" ")
            kind = after.split(" ", 1)[0]
            if kind not in ("tmpfs", "devpts") or device in seen:
                continue
            seen.add(device)
            flags = _MS_REMOUNT | sum(_FLAGS.get(option, 0) for option in options.split(","))
            # A kernel before 6.12 resets the options of a devpts that a remount does not name.
            terminals = f"mode=620,ptmxmode=666,max={limits.terminals}"
            yield place, flags, terminals if kind == "devpts" else f"size={limits.bytes},nr_inodes={limits.inodes}"
