"""Programs that a person starts beside the tools, each on a terminal or on pipes of its own.

The sandbox agent starts a program, and passes the other ends of its terminal or pipes to the sandbox's owner. So the
kernel limits the output that waits, and no output passes through the sandbox agent. A program has the same limits as the tools.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import termios
import time

from rollyard.sandbox_agent.child_processes import (
    IGNORED_BY_PYTHON,
    SIGHUP,
    SIGKILL,
    SIGSTOP,
    ChildProcess,
    kill_family,
)
from rollyard.sandbox_agent.inside_listener import pass_descriptors
from rollyard.sandbox_agent.own_program import find_program, own_program
from rollyard.sandbox_agent.own_threads import MOST_PROGRAMS
from rollyard.sandbox_agent.process_control import PR_SET_DUMPABLE, prctl
from rollyard.sandbox_agent.settings import NON_INTERACTIVE
from rollyard.sandbox_agent.wake_flag import WakeFlag, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

    from rollyard.sandbox_agent.child_processes import ChildProcesses
    from rollyard.sandbox_agent.frames import Header, Stream
    from rollyard.sandbox_agent.own_threads import OwnThreads
    from rollyard.sandbox_agent.settings import Settings

HANG_UP_SECONDS = 1.0
KILL_SECONDS = 2.0
RUNNER = "rollyard.sandbox_agent.program_runner"
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes, as in a shell."""


class _Running:
    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.wake = WakeFlag()
        """Set when the program must end."""
        self.child: ChildProcess | None = None


class Programs:
    """All programs of one sandbox. A program runs until it ends by itself, or until its call is cancelled."""

    def __init__(
        self, stream: Stream, gate: socket, settings: Settings, children: ChildProcesses, threads: OwnThreads
    ) -> None:
        self._stream = stream
        self._gate = gate
        self._settings = settings
        self._children = children
        self._threads = threads
        self._lock = _thread.allocate_lock()
        self._running: dict[int, _Running] = {}

    def submit(self, header: Header) -> None:
        """Start the program in a thread of its own. The reply to the call comes when the program has ended."""
        running = _Running(header["ticket"])
        with self._lock:
            full = len(self._running) >= MOST_PROGRAMS
            if not full:
                self._running[header["id"]] = running
        if full:
            self._stream.send({"id": header["id"], "refused": f"{MOST_PROGRAMS} programs run already; end one of them"})
            return
        self._threads.start(lambda: self._run(header, running))

    def cancel(self, call_id: int) -> None:
        with self._lock:
            if running := self._running.get(call_id):
                running.wake.set()

    def signal(self, ticket: int, number: int) -> None:
        """Signal the program's process group. A program that has ended is left out."""
        with self._lock:
            for running in self._running.values():
                child = running.child
                if running.ticket == ticket and child is not None and child.status is None:
                    try:
                        os.killpg(child.pid, number)
                    except (ProcessLookupError, PermissionError):
                        pass

    def _run(self, header: Header, running: _Running) -> None:
        reply: Header
        try:
            reply = {"exit_code": self._run_to_end(header, running)}
        except OSError as error:
            reply = {"refused": f"the program cannot be started: {error.strerror}"}
        except Exception as error:  # noqa: BLE001 - the outermost boundary of this thread: the caller gets the error
            sys.excepthook(*sys.exc_info())
            reply = {"fault": f"{type(error).__name__}: {error}"}
        with self._lock:
            del self._running[header["id"]]
            os.close(running.wake.fileno())
            if running.child is not None:
                running.child.close()
        self._stream.send({"id": header["id"], **reply})

    def _run_to_end(self, header: Header, running: _Running) -> int:
        child = self._start(header, running)
        readable([child.exited, running.wake.fileno()], None)
        if child.status is None:
            _end(child)
        return child.status if child.status is not None else -SIGKILL

    def _start(self, header: Header, running: _Running) -> ChildProcess:
        stdio, owners = _terminal(header["size"]) if header["tty"] else _pipes()
        held, release = os.pipe()
        argv, env = self._command(header)

        def fork() -> int:
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(release)
                    _become(stdio, bool(header["tty"]), held, argv, self._settings.workdir, env)
                finally:
                    os._exit(NOT_EXECUTABLE)
            return pid

        try:
            child = running.child = self._children.start(fork)
            # the runner of cases measures memory in use; the virtual machine of Java reserves much more than it uses
            self._settings.confine(child.pid, address_space=header["own"] != RUNNER)
            pass_descriptors(self._gate, running.ticket, owners)
            os.write(release, b"g")  # now the limits hold
            return child
        finally:
            for fd in {*stdio, *owners, held, release}:
                os.close(fd)

    def _command(self, header: Header) -> tuple[list[str], dict[str, str]]:
        env = dict(self._settings.env)
        if header["own"]:  # a module of ours, run by our Python
            return [*own_program(sys.executable), "-I", "-S", "-m", header["own"], *header["argv"]], env
        if header["tty"]:
            env = {name: value for name, value in env.items() if NON_INTERACTIVE.get(name) != value}
            env["TERM"] = header["term"] or "xterm"
        return header["argv"], env


def _terminal(size: list[int]) -> tuple[list[int], list[int]]:
    """Return a new terminal as (descriptors of the program, descriptors of the owner)."""
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (size[0], size[1]))
    return [its, its, its], [ours]


def _pipes() -> tuple[list[int], list[int]]:
    stdin, ours_in = os.pipe()
    ours_out, stdout = os.pipe()
    ours_err, stderr = os.pipe()
    return [stdin, stdout, stderr], [ours_in, ours_out, ours_err]


def _become(stdio: list[int], tty: bool, held: int, argv: list[str], cwd: str, env: dict[str, str]) -> None:
    """Run the program in this process, which is a fork of the sandbox agent. First wait until the limits are set."""
    if tty:
        os.login_tty(stdio[0])
    else:
        os.setsid()
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
    os.dup2(held, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    for number in IGNORED_BY_PYTHON:
        _signal.signal(number, _signal.SIG_DFL)
    prctl(PR_SET_DUMPABLE, 1)  # else the files of this process in /proc belong to root, and its limits cannot be set
    if not os.read(3, 1):
        os._exit(NOT_EXECUTABLE)
    os.close(3)
    try:
        os.chdir(cwd)
    except OSError:
        os.chdir("/")
    program = find_program(argv[0], env["PATH"])
    if program is None:
        shell = "; a line of shell needs bash -c 'LINE'" if " " in argv[0].strip() else ""
        os.write(2, f"{argv[0]}: there is no such program in the sandbox{shell}\r\n".encode())
        os._exit(NOT_FOUND)
    try:
        os.execve(program[0], [*program, *argv[1:]], env)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\r\n".encode())
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def _end(child: ChildProcess) -> None:
    """End all processes of the program's session: first ask them, as a closed terminal does, then kill them."""
    kill_family(child.pid, SIGHUP)
    readable([child.exited], time.monotonic() + HANG_UP_SECONDS)
    # Stop the processes before killing them: a running fork bomb starts processes faster than they are killed.
    deadline = time.monotonic() + KILL_SECONDS
    while kill_family(child.pid, SIGSTOP) and time.monotonic() < deadline:
        kill_family(child.pid, SIGKILL)
    readable([child.exited], time.monotonic() + KILL_SECONDS)
