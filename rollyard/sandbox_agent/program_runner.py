"""Runs programs one after another for a judge, each within limits of its own, and measures them.

It is a program of the sandbox, run by our Python, so it needs nothing of the image. The judge is on the host, and what a
program should print is never in the sandbox. The judge's frames come on standard input and answers leave on standard output,
as one byte for the kind, four for the length, and the content:

| from the judge | content |
|---|---|
| R | JSON: a program to run, see `Job` |
| I | bytes for its standard input |
| E | nothing: its standard input ends |

| to the judge | content |
|---|---|
| O | bytes of its standard output |
| D | JSON: how it ended |

What a program leaves behind changes no later one. This process is the subreaper of all programs, so it kills and reaps
each of their processes, wherever they went. A confined program can write in a folder of its own, in /tmp, /var/tmp and
/dev/shm, which are emptied after it, and nowhere else (landlock(7), Linux 5.13 or later). No program can trace this process,
look into it or, from Linux 6.12 on, signal it. A program that ends this process gains nothing: its run has no result.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
import time

from rollyard.sandbox_agent.landlock import confine_writes, writes_within
from rollyard.sandbox_agent.process_control import PR_SET_DUMPABLE, prctl
from rollyard.sandbox_agent.syscall_filter import install, without_marks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeAlias

    Job: TypeAlias = "dict[str, Any]"
    """`argv`; `env`, variables on top of the sandbox's; `cwd`; `confined`; the limits `cpu_seconds`, `wall_seconds` (without
    the time for which it was ready and had no core), `whole_input` (nobody waits for its output to write its input),
    `latest_seconds`, `memory_bytes` (0: the sandbox's alone) and
    `output_bytes`."""
    Confinement: TypeAlias = "tuple[int | None, bytes | None]"
    """Rules of landlock, and a filter of system calls."""

_PR_SET_CHILD_SUBREAPER = 36
HEAD = struct.Struct("!cI")
_SCRATCH = f"/tmp/run-{os.urandom(8).hex()}"
"""Working folder of a confined program, with links to the files of the job's `cwd`. It is also HOME and TMPDIR."""
_EMPTIED = ("/tmp", "/var/tmp", "/dev/shm")
_STACK_BYTES = 256 << 20
_ERROR_BYTES = 4000
_CHUNK = 1 << 16
_WAITING_BYTES = 1 << 20
"""Input that waits for the program. The judge's further frames are not read meanwhile."""
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.02
"""Seconds between two measurements of a running program: they grow from the first to the last."""
_LINKED = 1000
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    if os.getppid() != 1 or not os.path.isdir("/opt/rollyard"):
        sys.exit("this program ends every process that it may signal, so it runs in a sandbox alone")
    prctl(PR_SET_DUMPABLE, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _end_all()
    kept = {folder: set(_names(folder)) for folder in _EMPTIED}
    frames = _Frames()
    confinement = writes_within([folder for folder in _EMPTIED if os.path.isdir(folder)]), without_marks()
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]  # each program inherits the limit
    resource.setrlimit(resource.RLIMIT_STACK, (min(_STACK_BYTES, hard) if hard >= 0 else _STACK_BYTES, hard))
    while True:
        frame = frames.take()
        if frame is None:
            frames.wait(os._exit)  # nothing runs: who starts now, as the next bash, is not to be ended
        elif frame[0] == b"R":
            job = json.loads(frame[1])
            run = _Run(job, frames, confinement)
            try:
                run.serve()
            finally:
                end = run.end()
                os.chdir("/")
                for folder in _EMPTIED:
                    _empty(folder, kept[folder])
            _send(b"D", json.dumps(end).encode())


class _Frames:
    """Frames of the judge. This process ends with them."""

    def __init__(self) -> None:
        self._read = bytearray()

    def take(self) -> tuple[bytes, bytes] | None:
        """Return a frame that has been read whole."""
        if len(self._read) < HEAD.size:
            return None
        kind, length = HEAD.unpack_from(self._read)
        end = HEAD.size + length
        if len(self._read) < end:
            return None
        content = bytes(self._read[HEAD.size : end])
        del self._read[:end]
        return kind, content

    def wait(self, leave: Callable[[int], object]) -> None:
        """Read what is there, and wait if nothing is. At the end call `leave`."""
        chunk = os.read(0, _CHUNK)
        if not chunk:
            leave(0)
        self._read += chunk


class _Run:
    """One program, from its start to its last process."""

    def __init__(self, job: Job, frames: _Frames, confinement: Confinement) -> None:
        self._job = job
        self._frames = frames
        self._input = bytearray()
        self._input_ends = False
        self._printed = 0
        self._errors = bytearray()
        self._cpu = 0.0
        self._peak = 0
        self._limit: str | None = None
        self._status: int | None = None
        self._began = self._wall_from = time.monotonic()
        self._own_wait = _waited(os.getpid())
        self._exited = -1
        self._refused: tuple[int, str] | None = None
        """Error number and text of what kept the program from starting."""
        stdio, ours = _pipes()
        self._stdin: int | None
        self._stdin, self._stdout, self._stderr = ours
        for fd in ours:
            os.set_blocking(fd, False)
        try:
            self._pid = _start(job, stdio, confinement)
            self._exited = os.pidfd_open(self._pid)
        except OSError as error:
            self._pid, self._refused = -1, (error.errno or 0, str(error))
        for fd in stdio:
            os.close(fd)

    def serve(self) -> None:
        """Pass its input and output on until it ends or reaches a limit."""
        poll = select.poll()
        if self._refused is not None:
            return
        pause, look = _FIRST_LOOK, self._began + _FIRST_LOOK
        watched: dict[int, int] = {}
        while self._limit is None:
            self._take_input()
            wanted = {self._exited: select.POLLIN, self._stdout: select.POLLIN, self._stderr: select.POLLIN}
            wanted = {fd: events for fd, events in wanted.items() if fd >= 0}
            if self._stdin is not None and self._input:
                wanted[self._stdin] = select.POLLOUT
            if self._stdin is not None and not self._input_ends and len(self._input) < _WAITING_BYTES:
                wanted[0] = select.POLLIN
            for fd in watched.keys() - wanted.keys():
                poll.unregister(fd)
            for fd, events in wanted.items():
                if watched.get(fd) != events:
                    poll.register(fd, events)
            watched = wanted
            ready = dict(poll.poll(max(0.0, look - time.monotonic()) * 1000))
            if 0 in ready:
                self._frames.wait(_end_all_and_leave)
            if self._stdin is not None and self._stdin in ready:
                self._feed()
            self._stdout = self._pass_output(self._stdout) if self._stdout in ready else self._stdout
            self._stderr = self._keep_errors(self._stderr) if self._stderr in ready else self._stderr
            if self._exited in ready:
                break
            if time.monotonic() >= look:
                self._measure()
                pause = min(2 * pause, _LAST_LOOK)
                look = time.monotonic() + pause

    def end(self) -> dict[str, Any]:
        """Kill every process, and return how the program ended."""
        wall = time.monotonic() - self._began
        if self._limit is None:
            while self._stdout >= 0 and _waits(self._stdout) and self._limit is None:
                self._stdout = self._pass_output(self._stdout)
            while self._stderr >= 0 and _waits(self._stderr):
                self._stderr = self._keep_errors(self._stderr)
        reaped = 0.0
        for pid, status, used in _end_all():
            reaped += used.ru_utime + used.ru_stime
            self._peak = max(self._peak, used.ru_maxrss << 10)
            if pid == self._pid:
                self._status = status
        for fd in {self._stdin, self._stdout, self._stderr, self._exited} - {None, -1}:
            os.close(fd)  # type: ignore[arg-type]
        memory, cpu = self._job["memory_bytes"], max(self._cpu, reaped)
        if self._limit is None and memory and self._peak > memory:
            self._limit = "memory"
        if self._limit is None and cpu > self._job["cpu_seconds"]:
            self._limit = "cpu"
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        return {
            "exit_code": code, "limit": self._limit, "cpu": cpu, "wall": wall, "memory": self._peak,
            "errors": self._errors.decode("utf-8", "replace"), "refused": self._refused,
        }  # fmt: skip

    def _take_input(self) -> None:
        while len(self._input) < _WAITING_BYTES and not self._input_ends and (frame := self._frames.take()):
            self._input_ends = frame[0] == b"E"
            self._input += frame[1]
        if self._input_ends and not self._input:
            self._close_input()

    def _feed(self) -> None:
        assert self._stdin is not None
        try:
            del self._input[: os.write(self._stdin, self._input[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:  # the program reads no more
            self._close_input()

    def _close_input(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def _pass_output(self, fd: int) -> int:
        """Return the descriptor, or -1 at its end."""
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            os.close(fd)
            return -1
        self._printed += len(chunk)
        if self._printed > self._job["output_bytes"]:
            self._limit = "output"
        else:
            _send(b"O", chunk)
        return fd

    def _keep_errors(self, fd: int) -> int:
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            os.close(fd)
            return -1
        self._errors += chunk
        half = _ERROR_BYTES // 2
        if len(self._errors) > _ERROR_BYTES:  # the first lines, and the last ones
            self._errors[half : len(self._errors) - half] = b""
        return fd

    def _measure(self) -> None:
        """Look at all processes of the sandbox: there are no others than the program's. Those that wait to be reaped are
        among them, so no time is lost with a process whose parent has ended."""
        cpu, resident, processes = 0.0, 0, []
        for pid in _processes():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                cpu += sum(map(int, fields[11:15])) / _TICKS
                resident += int(fields[21]) * _PAGE
                processes.append(pid)
        memory = self._job["memory_bytes"]
        if memory and resident > memory:  # pages that processes share count once
            resident = sum(map(_share, processes)) if len(processes) > 1 else resident
            self._peak = max(self._peak, resident)
            if resident > memory:
                self._limit = "memory"
        self._cpu = max(self._cpu, cpu)
        if self._cpu > self._job["cpu_seconds"]:
            self._limit = "cpu"
        now = time.monotonic()
        if self._job["whole_input"] and self._stdin is not None and not (self._input_ends or self._input):
            self._wall_from = now  # it waits for the judge, which is slow on a busy node
        elapsed, most = now - self._wall_from, self._job["wall_seconds"]
        if elapsed > most:
            elapsed -= max(map(_waited, processes), default=0.0) + _waited(os.getpid()) - self._own_wait
        if elapsed > most or now - self._began > self._job["latest_seconds"]:
            self._limit = "wall"


def _start(job: Job, stdio: tuple[int, int, int], confinement: Confinement) -> int:
    """Start the program in this process's working folder, and return its id. Raises OSError."""
    environment = {**os.environ, **job["env"]}
    if job["confined"]:
        environment |= {"HOME": _SCRATCH, "TMPDIR": _SCRATCH, "PWD": _SCRATCH}
        os.mkdir(_SCRATCH)
        for name in _names(job["cwd"])[:_LINKED]:
            os.symlink(os.path.join(job["cwd"], name), os.path.join(_SCRATCH, name))
    os.chdir(_SCRATCH if job["confined"] else job["cwd"])
    # Only these files are inherited. A fork of this process would take several times as long as a start without one.
    files = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)]
    defaults = (signal.SIGPIPE, signal.SIGXFSZ)

    def spawn() -> int:
        argv = job["argv"]
        return os.posix_spawnp(argv[0], argv, environment, file_actions=files, setsid=True, setsigdef=defaults)

    return _in_confined_thread(spawn, confinement) if job["confined"] else spawn()


def _in_confined_thread(spawn: Callable[[], int], confinement: Confinement) -> int:
    """Call `spawn` in a thread that is confined, as are the processes that it starts. This process is not."""
    rules, filter_ = confinement
    done, found, errors = _thread.allocate_lock(), list[int](), list[OSError]()

    def work() -> None:
        try:
            if rules is not None:
                confine_writes(rules)
            if filter_ is not None:
                install(filter_, all_threads=False)
            found.append(spawn())
        except OSError as error:
            errors.append(error)
        finally:
            done.release()

    done.acquire()
    _thread.start_new_thread(work, ())
    done.acquire()
    if errors:
        raise errors[0]
    return found[0]


def _end_all() -> list[tuple[int, int, Any]]:
    """Kill every process of the sandbox but its first one and this one. Return those that were children of this process, or
    became its children when their parents ended, with their status and their use of resources."""
    ended = []
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    while True:
        try:
            ended.append(os.wait4(-1, 0))
        except ChildProcessError:
            return ended
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def _end_all_and_leave(code: int) -> None:
    _end_all()
    os._exit(code)


def _processes() -> Iterator[int]:
    """Yield the ids of the sandbox's processes without its first one and this one."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (pid := int(name)) not in (1, os.getpid()):
            yield pid


def _waited(pid: int) -> float:
    """Return the longest time in seconds that a thread of the process was ready to run and had no core."""
    longest = 0
    for thread in _names(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            longest = max(longest, int(file.read().split()[1]))
    return longest / 1e9


def _share(pid: int) -> int:
    """Return the memory of a process, in which a page that n processes share counts as an n-th of it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return 0


def _empty(folder: str, kept: set[str]) -> None:
    """Remove everything in the folder but the names in `kept`, however deep it is: folders inside are moved up first."""
    moved, above = 0, ""
    while names := [name for name in _names(folder) if name not in kept]:
        above = above or f".{os.urandom(8).hex()}-"
        for name in names:
            path = os.path.join(folder, name)
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            for inner in _names(path):
                below = os.path.join(path, inner)
                if stat.S_ISDIR(os.lstat(below).st_mode):
                    os.chmod(below, 0o700)
                    moved += 1
                    os.rename(below, os.path.join(folder, f"{above}{moved}"))
                else:
                    os.unlink(below)
            os.rmdir(path)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the ends of standard input, output and errors that the program gets, and the other ends."""
    (stdin, ours_in), (ours_out, stdout), (ours_err, stderr) = os.pipe(), os.pipe(), os.pipe()
    return (stdin, stdout, stderr), (ours_in, ours_out, ours_err)


def _waits(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def _send(kind: bytes, content: bytes) -> None:
    data = memoryview(HEAD.pack(kind, len(content)) + content)
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the judge has gone
        sys.exit(1)
