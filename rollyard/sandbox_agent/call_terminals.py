"""Pseudo-terminals for the output of bash commands, one a call.

Text that a background job prints after its call has ended belongs to no later call. So a job keeps the terminal of its
call, and its later text is read and dropped: a job whose terminal nobody reads would block. A terminal that no process
holds after its call serves the next one.
"""

from __future__ import annotations

import os
import termios

from rollyard.sandbox_agent.output_capture import OutputCapture

_CHUNK = 1 << 16
_IN_TERMINAL = 1 << 16
"""More bytes than a terminal holds (n_tty.c: 4 KiB, pty.c: 8 KiB). A background job may print faster than we read."""
_MOST_HELD = 24
"""Greatest number of terminals that background jobs hold; a sandbox can have 64. Later calls share one terminal then."""


class OpenTerminal:
    """A pseudo-terminal that passes bytes on unchanged."""

    def __init__(self) -> None:
        self.fd, self.other = os.openpty()
        """The end that is read, and the end for programs."""
        self.name = os.ttyname(self.other)
        self._mode = termios.tcgetattr(self.other)
        self._mode[1] &= ~termios.OPOST
        self._mode[3] &= ~termios.ECHO
        self.reset()
        termios.tcsetwinsize(self.other, (50, 160))
        os.set_blocking(self.fd, False)

    def reset(self) -> None:
        """Undo what a command has changed with `stty`."""
        termios.tcsetattr(self.fd, termios.TCSANOW, self._mode)

    def read(self, capture: OutputCapture | None) -> int | None:
        """Read once; return the number of bytes, 0 if there are none now, None if no process holds the other end. Without a
        `capture` the bytes are dropped."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            return None  # EIO
        if capture is not None:
            capture.feed(chunk)
        return len(chunk)

    def read_available(self, capture: OutputCapture | None) -> bool:
        """Read the present content; return True if a process holds the other end."""
        count = 0
        while count < _IN_TERMINAL and (length := self.read(capture)) != 0:
            if length is None:
                return False
            count += length
        return True

    def release(self) -> None:
        """Close our copy of the end for programs."""
        if self.other >= 0:
            os.close(self.other)
            self.other = -1

    def close(self) -> None:
        self.release()
        os.close(self.fd)


class CallTerminals:
    def __init__(self) -> None:
        self._current: OpenTerminal | None = None
        self._held: list[OpenTerminal] = []

    def begin(self) -> str:
        """Return the path of the terminal for the next call. Raises OSError."""
        if self._current is None:
            try:
                self._current = OpenTerminal()
            except OSError:
                if not self._held:
                    raise
                self._current = self._held.pop()  # a program has all other terminals; better shared than none
        self._current.release()
        self._current.reset()
        return self._current.name

    def hold(self) -> None:
        """Keep the terminal of the running call open, so that it can be watched: one that no process holds would always be
        readable."""
        if self._current is not None and self._current.other < 0:
            self._current.other = os.open(self._current.name, os.O_RDWR | os.O_NOCTTY)

    def finish(self, capture: OutputCapture) -> None:
        """Read the rest of the call's output."""
        if self._current is None:
            return
        self._current.release()
        if self._current.read_available(capture) and len(self._held) < _MOST_HELD:
            self._held.append(self._current)
            self._current = None

    def fds(self) -> list[int]:
        """File descriptors that are to be watched."""
        shown = [self._current.fd] if self._current and self._current.other >= 0 else []
        return [*shown, *(terminal.fd for terminal in self._held)]

    def read(self, ready: set[int], capture: OutputCapture) -> None:
        if self._current is not None and self._current.fd in ready:
            self._current.read(capture)
        if not ready.isdisjoint([terminal.fd for terminal in self._held]):
            self.drain()

    def drain(self) -> None:
        """Read and drop what background jobs print."""
        for terminal in list(self._held):
            if terminal.read(None) is None:
                self._held.remove(terminal)
                terminal.close()

    def close(self) -> None:
        for terminal in [*self._held, *([self._current] if self._current else [])]:
            terminal.close()
        self._held, self._current = [], None
