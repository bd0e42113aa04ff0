"""Serves the calls of the sandbox's owner: passes each call to the thread of the call's tool.

Bash has no thread of its own. The main thread runs its calls, and takes other calls meanwhile: passing a call to another
thread, which must be woken, would take as long as the command of a short call.
"""

from __future__ import annotations

import errno
import os

from rollyard.sandbox_agent.inside_listener import listen, receive_pipe
from rollyard.sandbox_agent.ipython_tool import IPythonTool
from rollyard.sandbox_agent.settings import WORKSPACE
from rollyard.sandbox_agent.tool_thread import QueuedCall, ToolThread
from rollyard.sandbox_agent.wake_flag import readable
from rollyard.sandbox_agent.way_in import of_mounts
from rollyard.sandbox_agent.whole_files import read_file, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable
    from typing import TypeAlias

    from rollyard.sandbox_agent.bash_tool import BashTool
    from rollyard.sandbox_agent.child_processes import ChildProcesses
    from rollyard.sandbox_agent.clock_mark import ClockMark
    from rollyard.sandbox_agent.frames import Header, Stream
    from rollyard.sandbox_agent.own_threads import OwnThreads
    from rollyard.sandbox_agent.programs import Programs
    from rollyard.sandbox_agent.settings import Settings

Reply: TypeAlias = "tuple[Header, bytes]"


class ToolRoute:
    def __init__(self, thread: ToolThread | None, run: Callable[[Header, bytes], Reply]) -> None:
        self.thread = thread
        """Thread of the calls; None for the main thread."""
        self.run = run


class SandboxAgentServer:
    def __init__(
        self,
        stream: Stream,
        gate: socket,
        settings: Settings,
        children: ChildProcesses,
        threads: OwnThreads,
        shell: BashTool,
        started: ClockMark,
    ) -> None:
        self._started = started
        self._stream = stream
        self._gate = gate
        self._shell = shell
        self._python = IPythonTool(settings, children)
        self.stops = False
        """True if the running call of bash was cancelled."""
        self._running: int | None = None
        self._waiting: list[QueuedCall] = []
        """Calls of bash."""
        ipython = ToolThread(stream, self._python)
        files, archives = ToolThread(stream), ToolThread(stream)  # an archive may take minutes
        self._own_threads = threads
        self._tool_threads = (ipython, files, archives)
        self._settings = settings
        self._children = children
        self._programs: Programs | None = None
        self._routes = {
            "bash": ToolRoute(None, self._bash),
            "prepare bash": ToolRoute(None, self._prepare_bash),
            "printed": ToolRoute(files, self._printed),
            "ipython": ToolRoute(ipython, self._ipython),
            "prepare ipython": ToolRoute(ipython, self._prepare_ipython),
            "edit": ToolRoute(files, lambda header, body: _edit(settings.workdir, header)),
            "read": ToolRoute(files, _read),
            "write": ToolRoute(files, _write),
            "listen": ToolRoute(files, self._listen),
            "snapshot": ToolRoute(archives, self._snapshot),
            "restore": ToolRoute(archives, self._restore),
            "signal": ToolRoute(files, self._signal),
        }

    def serve(self) -> None:
        """Serve calls until the owner is gone. Then this process ends."""
        for thread in self._tool_threads:
            thread.start(self._own_threads)
        while True:
            idle = self._shell.idle_fds()
            ready = readable([self.fileno(), *idle], None)
            if not ready.isdisjoint(idle):
                self._shell.drain()
            if self.fileno() in ready:
                self.take_call()
            while self._waiting:
                call = self._waiting.pop(0)
                self._running, self.stops = call.id, False
                call.answer(self._stream)
                self._running = None

    def fileno(self) -> int:
        return self._stream.fileno()

    def take_call(self) -> None:
        """Receive a call, and pass it on."""
        frame = self._stream.receive()
        if frame is None:
            # Without clean-up: the sandbox agent is process 1 of the sandbox, so this exit ends all other processes too.
            os._exit(0)
        header, body = frame
        if header["op"] == "cancel":
            self._cancel(header["id"])
        elif header["op"] == "exec":
            self._start_programs().submit(header)
        else:
            route = self._routes[header["op"]]
            call = QueuedCall(header["id"], header, body, route.run)
            if route.thread is None:
                self._waiting.append(call)
            else:
                route.thread.submit(call)

    def _cancel(self, call_id: int) -> None:
        """Remove a waiting call, or stop the running one. An unknown id belongs to a call that has ended."""
        self._waiting = [call for call in self._waiting if call.id != call_id]
        self.stops = self.stops or call_id == self._running
        for thread in self._tool_threads:
            thread.cancel(call_id)
        if self._programs is not None:
            self._programs.cancel(call_id)

    def _prepare_bash(self, header: Header, body: bytes) -> Reply:
        self._shell.start(self)
        return {}, b""

    def _prepare_ipython(self, header: Header, body: bytes) -> Reply:
        self._python.start()
        return {}, b""

    def _bash(self, header: Header, body: bytes) -> Reply:
        done = self._shell.run(body, header["timeout"], self)
        reply = {
            "exit_code": done.exit_code,
            "timed_out": done.timed_out,
            "restarted": done.restarted,
            "total": done.total,
        }
        return {**reply, **of_mounts()}, done.output

    def _ipython(self, header: Header, body: bytes) -> Reply:
        done = self._python.run(body.decode("utf-8", "replace"), header["timeout"])
        reply = {"failed": done.error, "timed_out": done.timed_out, "restarted": done.restarted}
        return {**reply, **of_mounts()}, done.output

    def _printed(self, header: Header, body: bytes) -> Reply:
        output, position = self._shell.printed(header["position"])
        return {"position": position}, output

    def _listen(self, header: Header, body: bytes) -> Reply:
        return {"port": listen(self._gate, header["ticket"], header.get("port", 0))}, b""

    def _start_programs(self) -> Programs:
        if self._programs is None:
            # imported here, because few sandboxes run a program for a person
            from rollyard.sandbox_agent.programs import Programs

            self._programs = Programs(self._stream, self._gate, self._settings, self._children, self._own_threads)
        return self._programs

    def _signal(self, header: Header, body: bytes) -> Reply:
        if self._programs is not None:
            self._programs.signal(header["ticket"], header["number"])
        return {}, b""

    def _snapshot(self, header: Header, body: bytes) -> Reply:
        from rollyard.sandbox_agent.snapshot_calls import write_snapshot

        return write_snapshot(receive_pipe(self._gate, header["pipe"]), self._started, header), b""

    def _restore(self, header: Header, body: bytes) -> Reply:
        from rollyard.sandbox_agent.snapshot_calls import restore_snapshot

        return restore_snapshot(receive_pipe(self._gate, header["pipe"]), header, self._settings), b""


def _edit(workdir: str, header: Header) -> Reply:
    from rollyard.sandbox_agent.editor_tool import edit

    output, ok = edit(header["command"], header["path"], header["arguments"], workdir)
    return {"ok": ok}, output.encode("utf-8", "surrogateescape")


def _read(header: Header, body: bytes) -> Reply:
    try:
        return {}, read_file(os.path.join(WORKSPACE, header["path"]), header["limit"])
    except (OSError, ValueError) as error:
        return _refused(error)


def _write(header: Header, body: bytes) -> Reply:
    try:
        write_file(os.path.join(WORKSPACE, header["path"]), body, header["mode"])
    except (OSError, ValueError) as error:
        return _refused(error)
    return {}, b""


def _refused(error: OSError | ValueError) -> Reply:
    """Reply with the error instead of raising it, because the task may have caused it, for example by deleting the
    file."""
    if isinstance(error, ValueError):
        return {"errno": errno.EINVAL, "error": f"no file can have this name: {error}"}, b""
    return {"errno": error.errno, "error": error.strerror}, b""
