"""The thread of one tool, or of all calls that need no other process (`edit`, `read`, `write`, `listen`). It runs its
calls one after the other. Between calls it reads the output of the tool's processes. Bash has no such thread: its calls
run in the main thread (`server.py`)."""

from __future__ import annotations

import _thread
import sys
import time

from rollyard.sandbox_agent.wake_flag import WakeFlag, readable
from rollyard.sandbox_agent.way_in import is_lost, keep_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from rollyard.sandbox_agent.frames import Header, Stream
    from rollyard.sandbox_agent.own_threads import OwnThreads
else:
    Protocol = object


class InteractiveTool(Protocol):
    """Interface of a tool that has processes of its own."""

    wake: WakeFlag
    """Flag that stops the running call."""

    def idle_fd(self) -> int | None:
        """File descriptor that becomes readable when a process of the tool prints between calls; None if no process
        runs."""

    def drain(self) -> None:
        """Read the output that was printed between calls."""


class QueuedCall:
    def __init__(
        self, call_id: int, header: Header, body: bytes, run: Callable[[Header, bytes], tuple[Header, bytes]]
    ) -> None:
        self.id = call_id
        self.header = header
        self.body = body
        self.run = run

    def answer(self, stream: Stream) -> None:
        """Run the call, and send its result."""
        started = time.monotonic()
        keep_open()
        try:
            header, body = self.run(self.header, self.body)
        except Exception as error:  # noqa: BLE001 - the outermost boundary of this thread: the caller gets the error
            sys.excepthook(*sys.exc_info())
            header, body = {"fault": f"{type(error).__name__}: {error}", "own_files_lost": is_lost()}, b""
        stream.send({"id": self.id, "seconds": time.monotonic() - started, **header}, body)


class ToolThread:
    def __init__(self, stream: Stream, tool: InteractiveTool | None = None) -> None:
        self._stream = stream
        self._tool = tool
        self._arrived = WakeFlag()
        self._queue: list[QueuedCall] = []
        self._lock = _thread.allocate_lock()
        self._running: int | None = None

    def submit(self, call: QueuedCall) -> None:
        with self._lock:
            self._queue.append(call)
        self._arrived.set()

    def cancel(self, call_id: int) -> None:
        """Remove a waiting call, or stop the running one. An unknown id is ignored: the call has ended, or it belongs
        to another tool. A running call of a thread without a tool is not stopped."""
        with self._lock:
            self._queue = [call for call in self._queue if call.id != call_id]
            if self._running == call_id and self._tool is not None:
                self._tool.wake.set()

    def start(self, threads: OwnThreads) -> None:
        threads.start(self._run)

    def _run(self) -> None:
        while True:
            self._wait()
            while (call := self._next()) is not None:
                call.answer(self._stream)

    def _wait(self) -> None:
        idle = self._tool.idle_fd() if self._tool else None
        ready = readable([self._arrived.fileno(), *([idle] if idle is not None else [])], None)
        if self._tool is not None and idle in ready:
            self._tool.drain()
        self._arrived.clear()

    def _next(self) -> QueuedCall | None:
        with self._lock:
            call = self._queue.pop(0) if self._queue else None
            self._running = call.id if call else None
            if self._tool is not None:
                self._tool.wake.clear()
            return call
