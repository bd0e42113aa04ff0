"""A seccomp filter for everything in the sandbox: system calls that a task does not need, and that reach the host's kernel
or the limits that all sandboxes share.

The sandbox agent sets the filter on itself before it starts its first thread, so the filter is the same in every runtime.
All later threads and processes have it, and none can remove it (seccomp(2)).

| closed | because |
|---|---|
| new namespaces, `setns`, mounts | with a user namespace of its own a process reaches much of the kernel |
| kernel keys | the quota of keys is shared by all processes of the user |
| `bpf`, `perf_event_open`, `userfaultfd`, `fanotify_init` | they look into the kernel, and had many flaws |
| io_uring | its operations pass by this filter |
| `memfd_secret` | the memory guard cannot see such memory |
| `shmget` of more than 64 KiB | the memory guard cannot see a segment that no process has attached |
| `open_by_handle_at`, `kcmp` | they look past the sandbox's files and into other processes |
| sockets but Unix, IPv4, IPv6 and routing netlink | other families had many flaws, and vsock is not of a network namespace |
| `TIOCSTI`, `TIOCLINUX` | they type into a terminal |
| programs for another architecture, such as 32 bits | their calls have other numbers |
"""

from __future__ import annotations

import errno
import os
import struct

from rollyard.sandbox_agent.process_control import prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
"""Places in struct seccomp_data. Arguments have 64 bits; these are their lower halves, on little-endian machines."""

_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""
_FAMILIES = (1, 2, 10)
"""Unix, IPv4, IPv6."""
_NETLINK, _NETLINK_ROUTE = 16, 0
_TERMINAL_WRITES = (0x5412, 0x541C)
_MAX_SEGMENT = 1 << 16
"""The kernel lets a sandbox have 4096 segments of System V, so 256 MiB."""
_X32 = 0x40000000
"""Calls of x86-64's 32-bit mode have this bit."""

# Numbers from the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h. From 424 on all
# architectures have the same numbers.
_NEW_CALLS = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "mount_setattr": 442,
    "memfd_secret": 447,
}  # fmt: skip
_CALLS = {
    "x86_64": {
        "ioctl": 16, "shmget": 29, "socket": 41, "socketpair": 53, "clone": 56, "pivot_root": 155, "chroot": 161, "mount": 165,
        "umount2": 166, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
        "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308, "kcmp": 312, "bpf": 321, "userfaultfd": 323,
    } | _NEW_CALLS,
    "aarch64": {
        "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "unshare": 97, "shmget": 194, "socket": 198,
        "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "perf_event_open": 241,
        "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268, "kcmp": 272, "bpf": 280, "userfaultfd": 282,
    } | _NEW_CALLS,
}  # fmt: skip
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_UNKNOWN = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_secret")
"""Calls that fail as on an older kernel, so that programs do without them. glibc then calls `clone`, whose flags the filter
can read."""
_LOOKED_INTO = ("clone", "unshare", "socket", "socketpair", "ioctl", "shmget")


Instruction: TypeAlias = "tuple[int, int, int, int]"
"""Code, jump if true, jump if false, value: struct sock_filter."""


def set_filter() -> None:
    """Set the filter on this thread, and on all that it starts later. Does nothing on an unknown architecture.

    Raises OSError if the kernel has no seccomp.
    """
    machine = os.uname().machine
    if machine not in _CALLS:
        return
    program = b"".join(struct.pack("HBBI", *one) for one in instructions(machine))
    address = id(program) + bytes.__basicsize__ - 1  # CPython keeps the content of `bytes` behind the object's head
    header = struct.pack("HxxxxxxP", len(program) // 8, address)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header)


def instructions(machine: str) -> Sequence[Instruction]:
    """Return the program (Linux's Documentation/userspace-api/seccomp_filter.rst)."""
    calls = _CALLS[machine]
    program = [
        _load(_ARCHITECTURE), (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]), _fail(errno.ENOSYS),
        _load(_NUMBER), (_JUMP_AT_LEAST, 0, 1, _X32), _fail(errno.ENOSYS),
    ]  # fmt: skip
    for name, number in calls.items():
        if name not in _LOOKED_INTO:
            program += _block(number, [_fail(errno.ENOSYS if name in _UNKNOWN else errno.EPERM)])
    for name in ("clone", "unshare"):
        program += _block(
            calls[name], [_load(_FIRST), (_JUMP_BITS, 0, 1, _NEW_NAMESPACES), _fail(errno.EPERM), _allow()]
        )
    for name in ("socket", "socketpair"):
        program += _block(calls[name], _sockets())
    writes = [one for value in _TERMINAL_WRITES for one in ((_JUMP_EQUAL, 0, 1, value), _fail(errno.EPERM))]
    program += _block(calls["ioctl"], [_load(_SECOND), *writes, _allow()])
    too_large = [_load(_SECOND + 4), (_JUMP_EQUAL, 1, 0, 0), _fail(errno.ENOSPC)]
    too_large += [_load(_SECOND), (_JUMP_AT_LEAST, 0, 1, _MAX_SEGMENT + 1), _fail(errno.ENOSPC), _allow()]
    program += _block(calls["shmget"], too_large)
    return [*program, _allow()]


def _sockets() -> list[Instruction]:
    families = [one for family in _FAMILIES for one in ((_JUMP_EQUAL, 0, 1, family), _allow())]
    routing = [_load(_THIRD), (_JUMP_EQUAL, 0, 1, _NETLINK_ROUTE), _allow()]
    return [_load(_FIRST), *families, (_JUMP_EQUAL, 0, len(routing), _NETLINK), *routing, _fail(errno.EAFNOSUPPORT)]


def _block(number: int, body: list[Instruction]) -> list[Instruction]:
    """Run `body`, which ends with a return, for the call with this number."""
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def _load(place: int) -> Instruction:
    return _LOAD, 0, 0, place


def _fail(number: int) -> Instruction:
    return _RETURN, 0, 0, _ERRNO | number


def _allow() -> Instruction:
    return _RETURN, 0, 0, _ALLOW
