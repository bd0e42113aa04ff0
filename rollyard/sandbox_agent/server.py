"""The sandbox agent's main thread. It sends the hello message, receives the settings, and passes each call to the
thread of the call's tool.

Standard input is an unnamed Unix socket that the owner of the sandbox made. No other process can find the socket, and
no file remains of it. End-of-file on the socket means that the owner is gone, for whatever reason; then the agent ends
too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys
from _socket import socket

from rollyard.sandbox_agent.bash_tool import BashTool
from rollyard.sandbox_agent.child_processes import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, ChildProcesses
from rollyard.sandbox_agent.clock_mark import ClockMark
from rollyard.sandbox_agent.frames import PROTOCOL, Stream
from rollyard.sandbox_agent.inside_listener import listen, receive_gate, receive_pipe
from rollyard.sandbox_agent.ipython_tool import IPythonTool
from rollyard.sandbox_agent.process_control import prctl
from rollyard.sandbox_agent.settings import WORKSPACE, Settings
from rollyard.sandbox_agent.syscall_filter import set_filter
from rollyard.sandbox_agent.tool_thread import QueuedCall, ToolThread
from rollyard.sandbox_agent.whole_files import read_file, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from rollyard.sandbox_agent.frames import Header

Reply: TypeAlias = "tuple[Header, bytes]"
_PR_SET_DUMPABLE = 4


class ToolRoute:
    def __init__(self, lane: ToolThread, run: Callable[[Header, bytes], Reply]) -> None:
        self.lane = lane
        self.run = run


class AgentServer:
    def __init__(self, stream: Stream, gate: socket, settings: Settings, started: ClockMark) -> None:
        children = ChildProcesses()
        self._started = started
        self._stream = stream
        self._gate = gate
        self._shell = BashTool(settings, children)
        self._python = IPythonTool(settings, children)
        bash = ToolThread(stream, self._shell)
        ipython = ToolThread(stream, self._python)
        files = ToolThread(stream)
        self._lanes = (bash, ipython, files)
        self._routes = {
            "bash": ToolRoute(bash, self._bash),
            "prepare bash": ToolRoute(bash, self._prepare_bash),
            "ipython": ToolRoute(ipython, self._ipython),
            "prepare ipython": ToolRoute(ipython, self._prepare_ipython),
            "edit": ToolRoute(files, lambda header, body: _edit(settings.workdir, header)),
            "read": ToolRoute(files, _read),
            "write": ToolRoute(files, _write),
            "listen": ToolRoute(files, self._listen),
            "snapshot": ToolRoute(files, self._snapshot),
            "restore": ToolRoute(files, self._restore),
        }

    def serve(self) -> None:
        for lane in self._lanes:
            lane.start()
        while frame := self._stream.receive():
            header, body = frame
            if header["op"] == "cancel":
                for lane in self._lanes:
                    lane.cancel(header["id"])
                continue
            route = self._routes[header["op"]]
            route.lane.submit(QueuedCall(header["id"], header, body, route.run))

    def _prepare_bash(self, header: Header, body: bytes) -> Reply:
        self._shell.start()
        return {}, b""

    def _prepare_ipython(self, header: Header, body: bytes) -> Reply:
        self._python.start()
        return {}, b""

    def _bash(self, header: Header, body: bytes) -> Reply:
        done = self._shell.run(body, header["timeout"])
        return {"exit_code": done.exit_code, "timed_out": done.timed_out, "restarted": done.restarted}, done.output

    def _ipython(self, header: Header, body: bytes) -> Reply:
        done = self._python.run(body.decode("utf-8", "replace"), header["timeout"])
        return {"failed": done.error, "timed_out": done.timed_out, "restarted": done.restarted}, done.output

    def _listen(self, header: Header, body: bytes) -> Reply:
        return {"port": listen(self._gate, header.get("port", 0))}, b""

    def _snapshot(self, header: Header, body: bytes) -> Reply:
        from rollyard.sandbox_agent.snapshot_calls import write_snapshot

        return write_snapshot(receive_pipe(self._gate, header["pipe"]), self._started, header["limit"]), b""

    def _restore(self, header: Header, body: bytes) -> Reply:
        from rollyard.sandbox_agent.snapshot_calls import restore_snapshot

        return restore_snapshot(receive_pipe(self._gate, header["pipe"])), b""


def _edit(workdir: str, header: Header) -> Reply:
    from rollyard.sandbox_agent.editor_tool import edit

    output, ok = edit(header["command"], header["path"], header["arguments"], workdir)
    return {"ok": ok}, output.encode("utf-8", "surrogateescape")


def _read(header: Header, body: bytes) -> Reply:
    try:
        return {}, read_file(os.path.join(WORKSPACE, header["path"]), header["limit"])
    except OSError as error:
        return _refused(error)


def _write(header: Header, body: bytes) -> Reply:
    try:
        write_file(os.path.join(WORKSPACE, header["path"]), body, header["mode"])
    except OSError as error:
        return _refused(error)
    return {}, b""


def _refused(error: OSError) -> Reply:
    """Reply with the error instead of raising it, because the task may have caused it, for example by deleting the
    file."""
    return {"errno": error.errno, "error": error.strerror}, b""


def main() -> None:
    _restore_signals()
    stdin = _take_stdin()
    stream = Stream(stdin)
    started = ClockMark()
    _forbid_tracing()
    set_filter()
    try:
        gate = receive_gate(stdin)
        stream.send(
            {"hello": "rollyard sandbox agent", "protocol": PROTOCOL, "pid": os.getpid(), "python": sys.version}
        )
        frame = stream.receive()
        if frame is not None:
            AgentServer(stream, gate, Settings(frame[0]), started).serve()
    except (BrokenPipeError, EOFError):
        pass  # the owner is gone
    # Exit without clean-up: the sandbox agent is process 1 of the sandbox, so this exit ends all other processes too.
    os._exit(0)


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


def _forbid_tracing() -> None:
    """Forbid the task, which has the same uid, to trace this process and to open the process's memory or socket."""
    prctl(_PR_SET_DUMPABLE, 0)
