"""The sandbox agent's start. It receives the settings, starts bash, sends the hello message, and serves calls.

Standard input is an unnamed Unix socket that the owner of the sandbox made. No other process can find the socket, and
no file remains of it. End-of-file on the socket means that the owner is gone, for whatever reason; then the sandbox agent ends
too.

Imports are a third of a sandbox's start. So this module imports only what bash needs, and bash starts while the rest is
imported.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import resource
import sys
from _socket import socket

from rollyard.sandbox_agent.bash_tool import BashTool
from rollyard.sandbox_agent.child_processes import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, ChildProcesses
from rollyard.sandbox_agent.clock_mark import ClockMark
from rollyard.sandbox_agent.frames import PROTOCOL, Stream
from rollyard.sandbox_agent.inside_listener import receive_gate
from rollyard.sandbox_agent.own_threads import OwnThreads
from rollyard.sandbox_agent.own_user import User, become, find_user
from rollyard.sandbox_agent.process_control import PR_SET_DUMPABLE, prctl
from rollyard.sandbox_agent.resident_shell import make_script_file
from rollyard.sandbox_agent.settings import Settings
from rollyard.sandbox_agent.syscall_filter import OWNERS, pretend, set_filter
from rollyard.sandbox_agent.way_in import remember

_OPEN_FILES = 4096
"""More than a task's processes have: a task's files that are on their way in messages must not stop this process from
passing a socket."""


def main() -> None:
    _restore_signals()
    os.closerange(
        3, os.sysconf("SC_OPEN_MAX")
    )  # what the runtime left open; all that is opened from here on ends with an exec
    remember()
    os.umask(0o022)  # the usual one: tasks test the modes of the files that they make
    stdin = _take_stdin()
    stream = Stream(stdin)
    started = ClockMark()
    _lower_open_files()
    make_script_file()
    try:
        gate = receive_gate(stdin)
        frame = stream.receive()
        if frame is not None:
            user = _own_user(frame[0].get("user"))
            # the task, which has the same uid, may neither trace this process nor open its memory or socket
            prctl(PR_SET_DUMPABLE, 0)
            threads = OwnThreads()
            set_filter(threads.last_id)
            if user is not None and user.uid == 0:
                pretend(OWNERS)
            _serve(stream, gate, Settings(frame[0], user), threads, started)
    except (BrokenPipeError, EOFError):
        pass  # the owner is gone
    os._exit(0)


def _own_user(wanted: str | None) -> User | None:
    """Become the user that the image names. None: stay the user of the runtime. A process with several threads cannot."""
    if wanted is None:
        return None
    try:
        become(user := find_user(wanted))
    except (OSError, ValueError) as error:
        os.write(2, f"{error}\n".encode("utf-8", "replace"))
        os._exit(1)
    return user


def _serve(stream: Stream, gate: socket, settings: Settings, threads: OwnThreads, started: ClockMark) -> None:
    children = ChildProcesses(threads)
    shell = BashTool(settings, children)
    try:
        if settings.with_bash:
            shell.spawn()
    except OSError:
        pass  # the first call tries again, and its result has the error
    stream.send({"hello": "rollyard sandbox agent", "protocol": PROTOCOL, "pid": os.getpid(), "python": sys.version})
    # imported while bash starts
    from rollyard.sandbox_agent.server import SandboxAgentServer

    SandboxAgentServer(stream, gate, settings, children, threads, shell, started).serve()


def _restore_signals() -> None:
    """Restore the default handling of signals. If a script started the owner in the background, this process has
    inherited an ignored SIGINT. The sandbox's bash would inherit it too, and a shell cannot restore a signal that was
    ignored when the shell started."""
    for number in (SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGTSTP):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])


def _take_stdin() -> socket:
    """Take the owner's socket; children get /dev/null in its place."""
    sock = socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    return sock


def _lower_open_files() -> None:
    """Lower this process's soft limit of open files. The node agent's may be a million, and with an old C library a new
    process closes each of them on its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, _OPEN_FILES), hard))
