"""Memory of a sandbox's processes and files, read from /proc (proc(5)).

Memory of several kinds is counted once:

- private memory: `Pss_Anon` of each process. A page that processes share counts in equal parts.
- files in memory: the used blocks and inodes of the sandbox's tmpfs mounts.
- memory files (memfd_create, shared anonymous memory): the blocks of each file that a process has
  open, and `Pss` of mappings of other such files.
- System V segments, whether a process has attached them or not.
- kernel memory: page tables of each process, sockets with their buffers (see `socket_memory`), and what the buffers of
  pipes can hold.

A process that ends meanwhile counts with what could be read of it.

Pages of the image's files are left out, because the kernel can drop them. Other kernel memory, such as descriptions of
processes, mappings and file locks, is left out too, because no file in /proc shows it.
"""

from __future__ import annotations

import os
import re
import select
import stat
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

PAGE = os.sysconf("SC_PAGE_SIZE")
MAX_MAPS_BYTES = 1 << 20
"""Greatest length of a table of mappings that is read. A process with a longer table counts with all its shared memory."""
INODE_BYTES = 1536
"""Memory of a file in a tmpfs besides its content: inode and name."""
PIPE_BYTES, SMALL_PIPE_BYTES = 1 << 16, 1 << 13
"""Content of a pipe, and of a pipe that is made while the pipes of the user can hold LARGE_PIPES bytes (pipe(7))."""
LARGE_PIPES = 64 << 20
NO_SOCKETS: Mapping[int, int] = {}
NO_SEGMENTS: Mapping[int, int] = {}
_STATUS_LINE = re.compile(rb"^(Name|State|NSpid|FDSize|VmRSS|RssFile|RssShmem|VmPTE):\t(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    pid: int
    inside_pid: int
    """Id inside the sandbox; the sandbox agent has 1."""
    name: str
    bytes: int
    """Bytes that this process holds. A memory file or socket counts for each process that has it open."""


@dataclass(frozen=True, slots=True)
class SandboxMemory:
    used: int
    """Bytes of all processes and files together."""
    files: int
    """Bytes of the files in tmpfs mounts, and of what no process has mapped of the System V segments."""
    sockets: int
    """Bytes of the sockets and their buffers."""
    processes: Sequence[ProcessMemory]


def descendants(pid: int) -> list[int]:
    """Return the process and all processes below it. An orphan is included, because process 1 of the sandbox adopts it."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with suppress(OSError):
                    found += map(int, _read(f"/proc/{parent}/task/{thread}/children").split())
    return found


def find_sandbox_agent(launcher: int) -> int | None:
    """Return the process that is process 1 of the sandbox; None if there is none below the launcher."""
    return next((pid for pid in descendants(launcher) if inside_pid(pid) == 1), None)


def inside_pid(pid: int) -> int | None:
    """Return the id that a process has in its own PID namespace; None if the process is gone."""
    return status.inside_pid if (status := _status(pid)) is not None else None


def upper_bound(pids: Sequence[int]) -> int:
    """Return the resident memory of processes, their page tables, and the greatest content of their pipes. Shared pages
    count once for each process, so this is an upper bound of their private memory."""
    return sum(_held(status) for status in map(_status, pids) if status is not None)


def tmpfs_bytes(pid: int) -> int:
    """Return the bytes in the tmpfs mounts that a process sees and this process does not: a file of the node's /run that
    is bound into a sandbox is not the sandbox's. An overlay counts if its upper layer is a tmpfs."""
    found: dict[str, tuple[bool, tuple[int, int], int]] = {}
    own = own_devices()
    with suppress(OSError):
        for line in _read(f"/proc/{pid}/mountinfo").decode(errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            kind, device, place = after.split(" ", 1)[0], before.split(" ")[2], before.split(" ")[4]
            if device in own or device in found:
                continue
            if kind == "tmpfs" or (kind == "overlay" and "upperdir=" in after):
                with suppress(OSError):
                    space = os.statvfs(f"/proc/{pid}/root{place}")
                    blocks, inodes = space.f_blocks - space.f_bfree, space.f_files - space.f_ffree
                    used = blocks * space.f_frsize + inodes * INODE_BYTES
                    found[device] = kind == "overlay", (space.f_blocks, space.f_files), used
    files = sum(used for overlay, _, used in found.values() if not overlay)
    for overlay, size, used in found.values():
        if overlay:
            # An overlay shows the numbers of its upper layer, which may be in `found` too. They change meanwhile.
            files += max(0, used - max((u for o, s, u in found.values() if s == size and not o), default=0))
    return files


class _OwnMounts:
    """The mounts that this process sees. The kernel tells when they change (proc(5)), so their list is read only then: nodes
    may have hundreds."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self._file, select.POLLPRI)
        self._devices: Set[str] | None = None

    def devices(self) -> Set[str]:
        if self._changes.poll(0) or self._devices is None:
            self._devices = {line.split(b" ", 3)[2].decode() for line in _read("/proc/self/mountinfo").splitlines()}
        return self._devices


@cache
def _own_mounts() -> _OwnMounts:
    return _OwnMounts()


def own_devices() -> Set[str]:
    """Return the devices of all mounts that this process sees now, as MAJOR:MINOR. The kernel gives the number of an
    unmounted device to a new one."""
    return _own_mounts().devices()


def measure(
    sandbox_agent: int,
    sockets: Mapping[int, int] = NO_SOCKETS,
    without: Set[int] = frozenset(),
    segments: Mapping[int, int] = NO_SEGMENTS,
) -> SandboxMemory:
    """Measure the sandbox of a sandbox agent. `sockets`: inode -> bytes. `without`: processes to leave out, because they
    are ending. Until they have ended, only sockets that another process has open count. `segments`: id of a System V
    segment -> bytes."""
    statuses = {pid: _status(pid) for pid in descendants(sandbox_agent) if pid not in without}
    seen = {pid: status for pid, status in statuses.items() if status is not None and not status.has_ended}
    opened = {pid: _OpenFiles(status.shown_at, sockets) for pid, status in seen.items()}
    if without:
        sockets = {inode: size for held in opened.values() for inode, size in held.sockets.items()}
    memory_files = {inode: size for held in opened.values() for inode, size in held.memory_files.items()}
    pipes = len(set().union(*(held.pipes for held in opened.values())))
    of_sockets, unmapped = sum(sockets.values()), dict(segments)
    used, found = of_sockets + sum(memory_files.values()) + _pipe_bytes(pipes), []
    for pid, status in seen.items():
        private = _private(status, memory_files, unmapped) + status.page_tables
        used += private
        found.append(ProcessMemory(pid, status.inside_pid, status.name, private + opened[pid].bytes()))
    files = tmpfs_bytes(sandbox_agent) + sum(max(0, size) for size in unmapped.values())
    return SandboxMemory(used + files, files, of_sockets, found)


def segment_bytes(listed: int) -> Mapping[int, int]:
    """Return the bytes of System V segments, by their ids. `listed`: descriptor of their list (/proc/sysvipc/shm)."""
    os.lseek(listed, 0, os.SEEK_SET)
    text = bytearray()
    while piece := os.read(listed, 1 << 16):
        text += piece
    # key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap
    rows = [line.split() for line in text.splitlines()[1:]]
    return {int(row[1]): int(row[14]) + int(row[15]) for row in rows}


def glance(sandbox_agent: int) -> SandboxMemory:
    """Measure the processes of a sandbox roughly, in the shortest time: no lock is taken that a growing process holds. A
    page counts for each process that has it."""
    statuses = [(pid, _status(pid)) for pid in descendants(sandbox_agent)]
    found = [
        ProcessMemory(pid, status.inside_pid, status.name, status.resident - status.of_files)
        for pid, status in statuses
        if status is not None
    ]
    return SandboxMemory(sum(process.bytes for process in found), 0, 0, found)


def still_ending(sandbox_agent: int, killed: Set[int]) -> frozenset[int]:
    """Return those of the killed processes of a sandbox that may still have memory. A process that has ended, and for which
    its parent does not wait, has none."""
    there = killed & set(descendants(sandbox_agent)) if killed else ()
    return frozenset(pid for pid in there if (status := _status(pid)) is not None and not status.has_ended)


def has_sockets(pid: int) -> bool:
    """Return whether there is any socket in the network namespace of a process."""
    try:
        return not _read(f"/proc/{pid}/net/sockstat").startswith(b"sockets: used 0\n")
    except OSError:
        return True


def host_shared_bytes() -> int:
    """Return the memory of all tmpfs and memory files of this machine."""
    line = next(line for line in _read("/proc/meminfo").splitlines() if line.startswith(b"Shmem:"))
    return int(line.split()[1]) << 10


@dataclass(frozen=True, slots=True)
class _Status:
    inside_pid: int
    """Id inside the innermost PID namespace."""
    name: str
    resident: int
    of_files: int
    """Bytes of `resident` that are pages of files outside of memory."""
    shared: int
    """Bytes of `resident` that are pages of tmpfs, memory files and shared anonymous memory."""
    page_tables: int
    descriptors: int
    """Size of the table of descriptors."""
    shown_at: int
    """The process, or one of its threads if the main thread has ended: /proc then shows the memory and the open files of
    the process in the folders of its other threads alone."""
    has_ended: bool


def _status(pid: int) -> _Status | None:
    try:
        lines = shown = _status_lines(pid)
        shown_at = pid
        if _has_ended(lines):
            for thread in map(int, os.listdir(f"/proc/{pid}/task")):
                with suppress(OSError):
                    if not _has_ended(of_thread := _status_lines(thread)):
                        shown, shown_at = of_thread, thread
                        break
    except OSError:
        return None
    resident, of_files, shared, page_tables = (
        int(shown.get(name, b"0").split()[0]) << 10 for name in (b"VmRSS", b"RssFile", b"RssShmem", b"VmPTE")
    )
    inside, name = int(lines[b"NSpid"].split()[-1]), lines[b"Name"].decode(errors="replace")
    return _Status(
        inside, name, resident, of_files, shared, page_tables, int(shown[b"FDSize"]), shown_at, _has_ended(shown)
    )


def _status_lines(task: int) -> dict[bytes, bytes]:
    """`task`: a process or a thread."""
    return dict(_STATUS_LINE.findall(_read(f"/proc/{task}/status")))


def _has_ended(lines: Mapping[bytes, bytes]) -> bool:
    return lines[b"State"][:1] in (b"Z", b"X")


def _held(status: _Status) -> int:
    return status.resident + status.page_tables + status.descriptors * SMALL_PIPE_BYTES


def _pipe_bytes(count: int) -> int:
    """Return an upper bound of the content of pipes. The kernel does not show how full a pipe is."""
    return min(count * PIPE_BYTES, LARGE_PIPES + count * SMALL_PIPE_BYTES)


def _private(status: _Status, memory_files: Mapping[int, int], unmapped: dict[int, int]) -> int:
    pid = status.shown_at
    try:
        parts = {line.split(b":")[0]: line for line in _read(f"/proc/{pid}/smaps_rollup").splitlines()[1:]}
        anonymous, shared = (int(parts[name].split()[1]) << 10 for name in (b"Pss_Anon", b"Pss_Shmem"))
    except PermissionError:  # it hides its memory (PR_SET_DUMPABLE of prctl(2))
        return status.resident - status.of_files
    except KeyError:  # the kernel is older than 5.9
        anonymous, shared = status.resident - status.of_files - status.shared, status.shared
    except OSError:  # it has ended
        resident, of_files = _statm(pid)
        return resident - of_files
    return anonymous + (_unlisted(pid, memory_files, shared, unmapped) if shared else 0)


def _unlisted(pid: int, memory_files: Mapping[int, int], shared: int, unmapped: dict[int, int]) -> int:
    """Return the mapped bytes of memory files that no process has open. `shared`: all mapped bytes of such files and of
    tmpfs. `unmapped`: bytes of System V segments, of which those that the process has mapped are taken."""
    try:
        text = _read(f"/proc/{pid}/smaps", MAX_MAPS_BYTES)
    except OSError:
        return 0
    if len(text) == MAX_MAPS_BYTES:
        return shared
    found, counts, segment = 0, False, -1
    for line in text.splitlines():
        words = line.split()
        if not words[0].endswith(b":"):  # the head of a mapping: addresses, rights, offset, device, inode, path
            major, minor = (int(part, 16) for part in words[3].split(b":"))
            counts = os.makedev(major, minor) == _MEMORY_DEVICE and int(words[4]) not in memory_files
            segment = int(words[4]) if counts and words[-2].startswith(b"/SYSV") else -1  # the inode is the id
        elif counts and words[0] == b"Pss:":
            found += int(words[1]) << 10
            if segment in unmapped:
                unmapped[segment] -= int(words[1]) << 10
    return found


class _OpenFiles:
    """Memory behind the open files of a process."""

    def __init__(self, pid: int, sockets: Mapping[int, int]) -> None:
        self.memory_files: dict[int, int] = {}
        """Inode -> bytes."""
        self.pipes: set[int] = set()
        self.sockets: dict[int, int] = {}
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    info = entry.stat()
                    if info.st_dev == _MEMORY_DEVICE:
                        self.memory_files[info.st_ino] = info.st_blocks * 512
                    elif stat.S_ISFIFO(info.st_mode):
                        self.pipes.add(info.st_ino)
                    elif stat.S_ISSOCK(info.st_mode) and info.st_ino in sockets:
                        self.sockets[info.st_ino] = sockets[info.st_ino]

    def bytes(self) -> int:
        return sum(self.memory_files.values()) + sum(self.sockets.values()) + _pipe_bytes(len(self.pipes))


def _statm(pid: int) -> tuple[int, int]:
    """Return the resident bytes, and those of them that belong to files or shared memory."""
    try:
        _, resident, shared, *_ = map(int, _read(f"/proc/{pid}/statm").split())
    except (OSError, ValueError):
        return 0, 0
    return resident * PAGE, shared * PAGE


def _memory_device() -> int:
    """Return the device number of the kernel's own tmpfs, in which all memory files are."""
    file = os.memfd_create("probe")
    try:
        return os.fstat(file).st_dev
    finally:
        os.close(file)


def _read(path: str, limit: int = -1) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall() if limit < 0 else _read_to(file.fileno(), limit)


def _read_to(file: int, limit: int) -> bytes:
    """Read to the end or to the limit. The kernel gives such files in pieces of a few pages."""
    found = bytearray()
    while len(found) < limit and (piece := os.read(file, limit - len(found))):
        found += piece
    return bytes(found)


_MEMORY_DEVICE = _memory_device()
