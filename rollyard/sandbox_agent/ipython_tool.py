"""The sandbox agent's side of the `ipython` tool. It starts and ends the kernel process, and runs cells in it.

The kernel is a separate process, so that `os._exit`, a crash, or a cell that ignores interrupts ends only the kernel.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from _socket import socketpair

from rollyard.sandbox_agent.child_processes import (
    SIGINT,
    SIGKILL,
    SIGSTOP,
    ChildProcesses,
    fork_and_execute,
    kill_family,
)
from rollyard.sandbox_agent.frames import FrameBuffer, Stream
from rollyard.sandbox_agent.output_capture import LIMIT, OutputCapture
from rollyard.sandbox_agent.own_program import own_program
from rollyard.sandbox_agent.wake_flag import WakeFlag, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rollyard.sandbox_agent.settings import Settings

START_SECONDS = 60.0
RESTART_SECONDS = 12.0
"""Less than the time that the sandbox's owner gives to a call beyond its timeout."""
INTERRUPT_SECONDS = 2.0
INTERRUPT_AGAIN_SECONDS = 0.5
SEND_SECONDS = 10.0
MOST_FRAME_BYTES = 16 << 20
"""Greatest length of a message of the kernel. The kernel itself shortens what it sends."""
_KERNEL_FD = 3
_CHUNK = 1 << 16


class CellFinished:
    """The result of one cell. `output`: what the cell printed, in bounded length, then the cell's value or
    traceback."""

    def __init__(self, output: bytes, error: bool, timed_out: bool, restarted: bool) -> None:
        self.output = output
        self.error = error
        self.timed_out = timed_out
        self.restarted = restarted


class KernelUnusable(Exception):
    """The kernel process has ended (by `os._exit`, a crash or a kill), or it is no longer usable and must be killed."""


class IPythonTool:
    """One IPython session at a time. Only one thread may call the methods. Another thread may set `wake` to stop the
    running cell."""

    def __init__(self, settings: Settings, children: ChildProcesses) -> None:
        self.wake = WakeFlag()
        self._settings = settings
        self._children = children
        self._kernel: _Kernel | None = None
        self._capture = OutputCapture()
        self._was_lost = False
        self._was_ready = False

    def start(self) -> _Kernel:
        kernel = self._kernel or _Kernel(self._settings, self._children, is_first=not self._was_ready)
        self._kernel, self._was_ready = kernel, True
        return kernel

    def run(self, code: str, timeout: float) -> CellFinished:
        self.drain()
        try:
            kernel = self.start()
        except (RuntimeError, OSError) as error:
            if not self._was_ready:
                raise
            # It worked before. So a program of the task ends it, or leaves it no process.
            return CellFinished(f"{error}\n".encode("utf-8", "replace"), error=True, timed_out=False, restarted=True)
        restarted, self._was_lost = self._was_lost, False
        timed_out, exiting = False, False
        cell = _Cell()
        try:
            cell.id = kernel.request(code)
            if not kernel.until_reply(cell, self._capture, time.monotonic() + timeout, self.wake):
                timed_out = True
                self._interrupt(kernel, cell)
            exiting = cell.exiting
        except KernelUnusable:
            exiting = True
        if exiting:
            self._end(kernel)
        output = self._capture.pop() + cell.result()
        return CellFinished(output, cell.failed or timed_out or exiting, timed_out, restarted or exiting)

    def drain(self) -> None:
        """Read what threads and subprocesses of earlier cells have printed. Otherwise their writes would block once the
        pipe is full."""
        kernel = self._kernel
        if kernel is None:
            return
        try:
            kernel.read_available(self._capture)
        except KernelUnusable:
            self._end(kernel)
            self._was_lost = True

    def idle_fd(self) -> int | None:
        return self._kernel.printed if self._kernel else None

    def _interrupt(self, kernel: _Kernel, cell: _Cell) -> None:
        """Interrupt the running cell. Raises KernelUnusable if the cell does not stop; the caller then kills the
        kernel."""
        deadline = time.monotonic() + INTERRUPT_SECONDS
        while time.monotonic() < deadline:
            # The interrupt is repeated, because a cell may call `os.system` in a loop, and each running `os.system`
            # swallows one interrupt.
            kernel.interrupt()
            step = min(deadline, time.monotonic() + INTERRUPT_AGAIN_SECONDS)
            if kernel.until_reply(cell, self._capture, step, None):
                return
        raise KernelUnusable

    def _end(self, kernel: _Kernel) -> None:
        kernel.end(self._capture)
        self._kernel = None


class _Cell:
    """The result of one cell, built from the kernel's messages."""

    def __init__(self) -> None:
        self.id = ""
        """Id of the request. Messages that answer another one are left out: a cell can write a reply of its own."""
        self.failed = False
        self.exiting = False
        self._text = ""

    def add(self, message: Any) -> bool:
        """Add one message; return True if it is the last message of the cell.

        Raises KernelUnusable for a message that the kernel does not send: the cell has written into the socket.
        """
        try:
            kind, content = message["header"]["msg_type"], message["content"]
            if message["parent_header"]["msg_id"] != self.id:
                return False
            if kind == "execute_result":
                self._text = str(content["data"]["text/plain"])
            elif kind == "error":
                self._text, self.failed = "\n".join(content["traceback"]), True
            elif kind == "execute_reply":
                self.exiting = bool(content["payload"])
        except (TypeError, KeyError):
            raise KernelUnusable from None
        return bool(kind == "execute_reply")

    def result(self) -> bytes:
        text = self._text.encode("utf-8", "replace")
        if len(text) > LIMIT:
            bounded = OutputCapture()
            bounded.feed(text)
            text = bounded.pop()
        return text.rstrip(b"\n") + b"\n" if text else b""


class _Kernel:
    """The kernel process, with its socket and the pipe to which it prints."""

    def __init__(self, settings: Settings, children: ChildProcesses, *, is_first: bool) -> None:
        """`is_first`: no cell has run yet."""
        ours, its = socketpair()
        self.printed, printing = os.pipe()
        os.set_blocking(self.printed, False)
        ours.settimeout(SEND_SECONDS)
        self._numbers = itertools.count(1)
        self._socket = ours
        self._stream = Stream(ours)
        self._received = FrameBuffer(MOST_FRAME_BYTES)
        cwd = settings.workdir if os.path.isdir(settings.workdir) else "/"
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, printing, 1),
            (os.POSIX_SPAWN_DUP2, printing, 2),
            (os.POSIX_SPAWN_DUP2, its.fileno(), _KERNEL_FD),
        ]
        argv = [*own_program(sys.executable), "-I", "-u", "-m", "rollyard.sandbox_agent.ipython_kernel", cwd]
        env = dict(settings.env)
        try:
            # By a fork, because processes of the task may run: bash may have been used before.
            self._child = children.start(lambda: fork_and_execute(argv, env, actions))
        except OSError:
            os.close(self.printed)
            ours.close()
            raise
        finally:
            its.close()
            os.close(printing)
        self._child.resumes = True
        self._get_ready(settings, time.monotonic() + (START_SECONDS if is_first else RESTART_SECONDS))

    def _get_ready(self, settings: Settings, deadline: float) -> None:
        output = OutputCapture()
        try:
            settings.confine(self._child.pid)
            if self._await_message(output, deadline, None):
                return
        except (KernelUnusable, ProcessLookupError, PermissionError):
            pass
        self.end(output)
        raise RuntimeError(f"IPython did not start; it said: {output.pop().decode(errors='replace')[-2000:]!r}")

    def request(self, code: str) -> str:
        """Send a cell; return the id of the request."""
        header = {"msg_id": str(next(self._numbers)), "msg_type": "execute_request", "version": "5.4"}
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        try:
            self._stream.send({"header": header, "parent_header": {}, "metadata": {}, "content": content})
        except ConnectionError:
            pass  # the next wait for a message finds that the kernel has ended
        except TimeoutError:  # the kernel was stopped
            raise KernelUnusable from None
        return header["msg_id"]

    def until_reply(self, cell: _Cell, capture: OutputCapture, deadline: float, wake: WakeFlag | None) -> bool:
        """Read messages and output until the cell has ended; return False at the deadline or when `wake` is set.

        Raises KernelUnusable.
        """
        while (frame := self._await_message(capture, deadline, wake)) is not None:
            if cell.add(frame[0]):
                # The cell's output entered the pipe before the reply was sent.
                self._read_printed(capture)
                return True
        return False

    def _await_message(
        self, capture: OutputCapture, deadline: float, wake: WakeFlag | None
    ) -> tuple[Any, bytes] | None:
        """Return the next message, which may be anything that JSON can hold; None at the deadline or after `wake`."""
        watched = [self._stream.fileno(), self.printed, *([wake.fileno()] if wake else [])]
        while True:
            frame = self._next_frame()
            if frame is not None:
                return frame
            ready = readable(watched, deadline)
            if self.printed in ready and not self._read_printed(capture):
                watched.remove(self.printed)  # the cell has closed the pipe, so later output is lost
            if self._stream.fileno() in ready:
                self._receive()
            elif not ready or (wake and wake.fileno() in ready):
                return None

    def _next_frame(self) -> tuple[Any, bytes] | None:
        try:
            return self._received.take()
        except (ValueError, RecursionError):  # a cell wrote into our socket, so the following bytes cannot be trusted
            raise KernelUnusable from None

    def _receive(self) -> None:
        """Receive what is there, perhaps a part of a frame: a cell can write into our socket, and then stop."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            raise KernelUnusable
        self._received.feed(data)

    def _read_printed(self, capture: OutputCapture) -> bool:
        """Read the pipe's present content; return False if no process can write to it any more."""
        for _ in range(64):  # bounded, because a thread of the task may print faster than this loop reads
            try:
                chunk = os.read(self.printed, _CHUNK)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            capture.feed(chunk)
        return True

    def read_available(self, capture: OutputCapture) -> None:
        open_still = self._read_printed(capture)
        if not open_still or self._child.exited in readable([self._child.exited], time.monotonic()):
            raise KernelUnusable

    def interrupt(self) -> None:
        try:
            os.killpg(self._child.pid, SIGINT)
        except ProcessLookupError:
            pass

    def end(self, capture: OutputCapture) -> None:
        """Kill all processes of the kernel's session, and read their last output into `capture`."""
        readable([self._child.exited], time.monotonic() + 0.1)
        self._child.resumes = False
        kill_family(self._child.pid, SIGSTOP)
        kill_family(self._child.pid, SIGKILL)
        self._child.kill()  # if it has no session of its own yet
        readable([self._child.exited], time.monotonic() + 1.0)
        self._read_printed(capture)
        os.close(self.printed)
        self._stream.close()
        self._child.close()
