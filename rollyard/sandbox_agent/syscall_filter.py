"""A seccomp filter for everything in the sandbox: system calls that a task does not need, and that reach the host's kernel
or the limits that all sandboxes share.

The sandbox agent sets the filter on itself and all of its threads before it starts its first process, so the filter is the
same in every runtime. All later processes have it, and none can remove it (seccomp(2)).

| closed | because |
|---|---|
| new namespaces, `setns`, mounts | with a user namespace of its own a process reaches much of the kernel |
| kernel keys | the quota of keys is shared by all processes of the user |
| `bpf`, `perf_event_open`, `userfaultfd`, `fanotify_init` | they look into the kernel, and had many flaws |
| io_uring | its operations pass by this filter |
| `memfd_secret` | the memory guard cannot see such memory |
| `memfd_create` | the memory guard cannot see a memory file that is on its way from one process to another |
| `splice`, `vmsplice`, `tee`, `sendfile` | a pipe or socket keeps pages that the memory guard cannot see |
| `shmget` of more than 64 KiB | the memory guard cannot see a segment that no process has attached |
| `semget` of more than 32 semaphores, `msgget` | the memory guard cannot see this memory |
| `open_by_handle_at`, `kcmp` | they look past the sandbox's files and into other processes |
| sockets but Unix, TCP, UDP, ICMP and routing netlink | others had many flaws, and vsock is not of a network namespace |
| `prlimit64` with a limit, `setpriority`, `sched_set*`, `ioprio_set` for the sandbox agent | they end or slow process 1 |
| `TIOCSTI`, `TIOCLINUX` | they type into a terminal |
| programs for another architecture, such as 32 bits | their calls have other numbers |
"""

from __future__ import annotations

import errno
import os
import struct

from rollyard.sandbox_agent.process_control import prctl, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

_PR_SET_NO_NEW_PRIVS, _SECCOMP_SET_MODE_FILTER, _TO_ALL_THREADS = 38, 1, 1
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
"""Places in struct seccomp_data. Arguments have 64 bits; these are their lower halves, on little-endian machines."""

_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""
_UNIX, _INTERNET = 1, (2, 10)
"""Unix; IPv4 and IPv6."""
_PROTOCOLS = (0, 1, 6, 17, 58)
"""The usual protocol of the socket's type, ICMP, TCP, UDP, ICMP for IPv6."""
_NETLINK, _NETLINK_ROUTE = 16, 0
_TERMINAL_WRITES = (0x5412, 0x541C)
_MAX_SEGMENT = 1 << 16
"""The kernel lets a sandbox have 4096 segments of System V, so 256 MiB."""
_MAX_SEMAPHORES = 32
"""The kernel lets a sandbox have 32,000 sets of semaphores, so about 70 MiB."""
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
        "ioctl": 16, "shmget": 29, "sendfile": 40, "socket": 41, "socketpair": 53, "clone": 56, "semget": 64, "msgget": 68,
        "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166,
        "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
        "perf_event_open": 298,
        "sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203, "sched_setattr": 314,
        "setpriority": 141, "ioprio_set": 251, "prlimit64": 302, "seccomp": 317,
        "splice": 275, "tee": 276, "vmsplice": 278, "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308,
        "kcmp": 312, "memfd_create": 319, "bpf": 321, "userfaultfd": 323,
    } | _NEW_CALLS,
    "aarch64": {
        "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "sendfile": 71, "vmsplice": 75,
        "splice": 76, "tee": 77, "unshare": 97, "msgget": 186, "semget": 190, "shmget": 194, "socket": 198,
        "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "perf_event_open": 241,
        "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268, "kcmp": 272, "memfd_create": 279,
        "bpf": 280, "userfaultfd": 282,
        "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "sched_setattr": 274,
        "setpriority": 140, "ioprio_set": 30, "prlimit64": 261, "seccomp": 277,
    } | _NEW_CALLS,
}  # fmt: skip
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_UNKNOWN = (
    "clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret", "msgget",
)  # fmt: skip
"""Calls that fail as on an older kernel, so that programs do without them. glibc then calls `clone`, whose flags the filter
can read."""
_NOT_FOR_THIS_FILE = ("splice", "vmsplice", "tee", "sendfile")
"""Calls that fail with EINVAL. For this error, and not for all others, libuv, Java, Go and Rust copy by reads and writes."""
_OF_ONE_PROCESS = ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
"""Calls whose first argument is the id of a thread."""
_OF_PROCESSES = {"setpriority": (0, 1, 2), "ioprio_set": (1, 2, 3)}
"""Calls whose first argument says what the second one is: the id of a thread, of a process group, or of a user."""
_LOOKED_INTO = (
    "clone", "unshare", "socket", "socketpair", "ioctl", "shmget", "semget", "prlimit64", "seccomp", *_OF_ONE_PROCESS,
    *_OF_PROCESSES,
)  # fmt: skip

_PRETENDED = {
    "x86_64": {
        "chown": 92, "fchown": 93, "lchown": 94, "setuid": 105, "setgid": 106, "setreuid": 113, "setregid": 114,
        "setgroups": 116, "setresuid": 117, "setresgid": 119, "setfsuid": 122, "setfsgid": 123, "capset": 126, "mknod": 133,
        "mknodat": 259, "fchownat": 260, "fsync": 74, "fdatasync": 75, "sync": 162, "sync_file_range": 277, "syncfs": 306,
    },
    "aarch64": {
        "mknodat": 33, "fchownat": 54, "fchown": 55, "capset": 91, "setregid": 143, "setgid": 144, "setreuid": 145,
        "setuid": 146, "setresuid": 147, "setresgid": 149, "setfsuid": 151, "setfsgid": 152, "setgroups": 159,
        "sync": 81, "fsync": 82, "fdatasync": 83, "sync_file_range": 84, "syncfs": 267,
    },
}  # fmt: skip
_MARKING = {
    "x86_64": {
        "chmod": 90, "fchmod": 91, "utime": 132, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "utimes": 235,
        "futimesat": 261, "fchmodat": 268, "utimensat": 280,
    },
    "aarch64": {"setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "fchmod": 52, "fchmodat": 53, "utimensat": 88},
}  # fmt: skip
"""Calls that change what is known about a file, and which landlock does not limit."""
_LASTING = {
    "x86_64": {"shmget": 29, "semget": 64, "mq_open": 240}, "aarch64": {"mq_open": 180, "semget": 190, "shmget": 194},
}  # fmt: skip
"""Calls that make objects which outlive all processes."""
OWNERS = (
    "chown", "fchown", "lchown", "fchownat", "setuid", "setgid", "setreuid", "setregid", "setgroups", "setresuid",
    "setresgid", "setfsuid", "setfsgid", "capset",
)  # fmt: skip
"""The calls of them that change owners and users."""
_DEVICES = (0o020000, 0o060000)
"""File types of character and block devices."""

Instruction: TypeAlias = "tuple[int, int, int, int]"
"""Code, jump if true, jump if false, value: struct sock_filter."""


def set_filter(last_own_id: int) -> None:
    """Set the filter on all threads of this process, and on all processes that it starts later. Does nothing on an unknown
    architecture. `last_own_id`: the greatest id of a thread of this process; the task's processes have greater ones.

    Raises OSError if the kernel has no seccomp.
    """
    machine = os.uname().machine
    if machine not in _CALLS:
        return
    install(_packed(instructions(machine, last_own_id)))


def pretend(names: Sequence[str] | None = None) -> None:
    """Let these calls seem to work. None: those that change owners and users, those that make device files, and those that
    wait for the disk. Does nothing on an unknown architecture. Raises OSError if the kernel has no seccomp.
    """
    calls = _PRETENDED.get(os.uname().machine)
    if calls is None:
        return
    program = [_load(_ARCHITECTURE), (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[os.uname().machine]), _allow(), _load(_NUMBER)]
    for name, number in calls.items():
        if names is not None and name not in names:
            continue
        if name in ("mknod", "mknodat"):
            kind = _SECOND if name == "mknod" else _THIRD
            devices = [one for value in _DEVICES for one in ((_JUMP_EQUAL, 0, 1, value), _fail(0))]
            program += _block(number, [_load(kind), (_AND, 0, 0, 0o170000), *devices, _allow()])
        else:
            program += _block(number, [_fail(0)])
    install(_packed([*program, _allow()]))


def without_marks() -> bytes | None:
    """Return a filter that refuses calls with which a program could leave something to a later one beside files: marks on files
    of the image seem to work, and objects of the kernel seem not to exist. None: the architecture is unknown."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        return None
    program = [_load(_ARCHITECTURE), (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]), _allow(), _load(_NUMBER)]
    for number in _MARKING[machine].values():
        program += _block(number, [_fail(0)])
    for number in _LASTING[machine].values():
        program += _block(number, [_fail(errno.ENOSYS)])
    return _packed([*program, _allow()])


def _packed(filter_: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *one) for one in filter_)


def install(program: bytes, all_threads: bool = True) -> None:
    """Set a filter on all threads of this process, or on this thread, and on all processes that they start later."""
    address = id(program) + bytes.__basicsize__ - 1  # CPython keeps the content of `bytes` behind the object's head
    header = struct.pack("HxxxxxxP", len(program) // 8, address)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    seccomp(
        _CALLS[os.uname().machine]["seccomp"], _SECCOMP_SET_MODE_FILTER, _TO_ALL_THREADS if all_threads else 0, header
    )


def instructions(machine: str, last_own_id: int) -> Sequence[Instruction]:
    """Return the program (Linux's Documentation/userspace-api/seccomp_filter.rst)."""
    calls = _CALLS[machine]
    program = [
        _load(_ARCHITECTURE), (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]), _fail(errno.ENOSYS),
        _load(_NUMBER), (_JUMP_AT_LEAST, 0, 1, _X32), _fail(errno.ENOSYS),
    ]  # fmt: skip
    for name, number in calls.items():
        if name not in _LOOKED_INTO:
            program += _block(number, [_fail(_error(name))])
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
    program += _block(
        calls["semget"], [_load(_SECOND), (_JUMP_AT_LEAST, 0, 1, _MAX_SEMAPHORES + 1), _fail(errno.EINVAL), _allow()]
    )
    for name in _OF_ONE_PROCESS:
        program += _block(calls[name], _unless_own(_FIRST, last_own_id))
    for name, kinds in _OF_PROCESSES.items():
        program += _block(calls[name], _unless_own_or_all(kinds, last_own_id))
    # A new limit has an address; without one the call only reads.
    reads = [_load(_THIRD), (_JUMP_EQUAL, 0, 3, 0), _load(_THIRD + 4), (_JUMP_EQUAL, 0, 1, 0), _allow()]
    program += _block(calls["prlimit64"], [*reads, *_unless_own(_FIRST, last_own_id)])
    return [*program, _allow()]


def _unless_own(place: int, last_own_id: int) -> list[Instruction]:
    """Refuse the call for the sandbox agent. 0 is the caller itself; negative ids are great here."""
    process = [(_JUMP_EQUAL, 2, 0, 0), (_JUMP_AT_LEAST, 1, 0, last_own_id + 1), _fail(errno.EPERM), _allow()]
    return [_load(place), *process]


def _unless_own_or_all(kinds: tuple[int, int, int], last_own_id: int) -> list[Instruction]:
    process, group, user = kinds
    own = _unless_own(_SECOND, last_own_id)
    by_id = [(_JUMP_EQUAL, 1, 0, process), (_JUMP_EQUAL, 0, len(own), group), *own]
    return [_load(_FIRST), *by_id, (_JUMP_EQUAL, 0, 1, user), _fail(errno.EPERM), _allow()]


def _error(name: str) -> int:
    if name in _UNKNOWN:
        return errno.ENOSYS
    return errno.EINVAL if name in _NOT_FOR_THIS_FILE else errno.EPERM


def _sockets() -> list[Instruction]:
    protocols = [one for protocol in _PROTOCOLS for one in ((_JUMP_EQUAL, 0, 1, protocol), _allow())]
    internet = [_load(_THIRD), *protocols, _fail(errno.EPROTONOSUPPORT)]
    program = [_load(_FIRST), (_JUMP_EQUAL, 0, 1, _UNIX), _allow()]
    for family in _INTERNET:
        program += [(_JUMP_EQUAL, 0, len(internet), family), *internet]
    routing = [_load(_THIRD), (_JUMP_EQUAL, 0, 1, _NETLINK_ROUTE), _allow()]
    return [*program, (_JUMP_EQUAL, 0, len(routing), _NETLINK), *routing, _fail(errno.EAFNOSUPPORT)]


def _block(number: int, body: list[Instruction]) -> list[Instruction]:
    """Run `body`, which ends with a return, for the call with this number."""
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def _load(place: int) -> Instruction:
    return _LOAD, 0, 0, place


def _fail(number: int) -> Instruction:
    return _RETURN, 0, 0, _ERRNO | number


def _allow() -> Instruction:
    return _RETURN, 0, 0, _ALLOW
