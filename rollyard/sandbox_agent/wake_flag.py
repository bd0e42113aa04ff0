"""A flag that another thread can set, and that wakes a waiting `poll`."""

from __future__ import annotations

import os
import select
import time


class WakeFlag:
    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass


def readable(fds: list[int], deadline: float | None, writable: int | None = None) -> set[int]:
    """Wait until one of `fds` is readable or closed, at most until `deadline` (monotonic seconds; None: for ever).
    Return all file descriptors that are then readable or closed. `writable`: one more, until it takes bytes."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    if writable is not None:
        poll.register(writable, select.POLLOUT)
    timeout = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    return {fd for fd, _ in poll.poll(timeout)}
