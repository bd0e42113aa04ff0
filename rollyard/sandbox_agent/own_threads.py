"""All threads of the sandbox agent. They start before the first process of the task, so their ids are lower than those of
all processes of the task: the kernel gives ids in rising order, and after the greatest it goes on at 300.

The system call filter tells the two apart by this one number. A call such as prlimit(2) takes the id of any thread, and
changes the whole process.
"""

from __future__ import annotations

import _thread
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MOST_PROGRAMS = 8
"""Greatest number of programs that run at once in one sandbox, each with a thread."""
COUNT = 1 + 3 + MOST_PROGRAMS
"""The thread that reaps, those of IPython, files and archives, and those of programs."""


class OwnThreads:
    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._free: list[_Parked] = []
        self._waiting: list[Callable[[], None]] = []
        for _ in range(COUNT):
            parked = _Parked()
            _thread.start_new_thread(self._work, (parked,))
            self._free.append(parked)
        self.last_id = max(map(int, os.listdir("/proc/self/task")))
        """The greatest id of a thread of this process."""

    def start(self, run: Callable[[], None]) -> None:
        """Run a function in a thread, at once or when the next thread is free."""
        with self._lock:
            if self._free:
                self._free.pop().give(run)
            else:
                self._waiting.append(run)

    def _work(self, parked: _Parked) -> None:
        while True:
            parked.lock.acquire()
            parked.run()
            with self._lock:
                if self._waiting:
                    parked.give(self._waiting.pop(0))
                else:
                    self._free.append(parked)


class _Parked:
    """A thread that waits for its lock."""

    run: Callable[[], None]

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.lock.acquire()

    def give(self, run: Callable[[], None]) -> None:
        self.run = run
        self.lock.release()
