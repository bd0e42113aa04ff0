"""The memory guard: a process that keeps the sandboxes of one node agent within their memory limits.

Standard input is a socket of the node agent, with messages `watch` and `forget`. Before the guard ends processes it sends
a message `over`. So the node agent has this message before it has the result of the call that the processes belonged
to. It sends `refusals` while this user may start no more processes. The guard exits when the node agent is gone.

The guard is a process of its own, because a measurement takes time that the node agent's event loop does not have, and
because reading a process that faults pages in may block.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from rollyard.sandbox.free_memory import free_memory, reserve, whole_memory
from rollyard.sandbox.memory_guard import limit, messages, process_memory, sandbox_entry, socket_memory
from rollyard.sandbox.memory_guard.process_memory import ProcessMemory, SandboxMemory
from rollyard.sandbox.process_refusals import refuses_thread

_LIBC = ctypes.CDLL(None)
_PROCESS_MRELEASE = 448
"""Number of the system call, on all machines. A kernel before 5.15 lacks it."""
LOOK_SECONDS, SHORTEST_LOOK_SECONDS = 0.1, 0.01
"""Seconds between two looks at the machine's shared memory, at the free memory, and at the limit of processes."""
REACTION_SECONDS = 0.2
"""Seconds from a look at the free memory to the end of processes on a busy machine."""
SECOND_LOOK_SECONDS = 3.0
"""Seconds after which a sandbox without a sandbox agent is looked at again. Meanwhile a sandbox that is ending has ended."""
UNEXPLAINED = 64 << 20
"""Growth of the machine's shared memory after which every sandbox is measured. A memory file that no process has mapped
shows nowhere else without a look at each open file."""


@dataclass(slots=True)
class Watched:
    name: str
    sandbox_agent: int
    """Process id of the sandbox agent. All other processes of the sandbox are below it."""
    handle: int
    """pidfd of the sandbox agent. It tells whether the process id still belongs to the sandbox agent."""
    limit: int
    sockets: socket.socket | None = None
    """Socket through which the sandbox's sockets are seen."""
    segments: int | None = None
    """Descriptor of the list of the sandbox's System V segments."""
    is_entered: bool = False
    """True once the sandbox was entered, which costs a fork of this process."""
    due: float = 0.0
    bound: int = 0
    """Upper bound of the bytes at the last check."""
    files: int = 0
    """Bytes in files at the last exact measurement."""
    unseen: int = 0
    """Bytes at the last exact measurement that the upper bound did not show."""
    ending: frozenset[int] = frozenset()
    """Processes that were ended and are still there: the kernel takes a while to free gigabytes."""

    def is_gone(self) -> bool:
        poll = select.poll()  # `select` takes no descriptor beyond 1023
        poll.register(self.handle, select.POLLIN)
        return bool(poll.poll(0))

    def socket_bytes(self) -> Mapping[int, int]:
        """Return the bytes of each socket of the sandbox, by inode."""
        if not process_memory.has_sockets(self.sandbox_agent):
            return process_memory.NO_SOCKETS
        self.enter()
        if self.sockets is None:
            return process_memory.NO_SOCKETS
        try:
            return socket_memory.socket_bytes(self.sockets)
        except OSError:
            return process_memory.NO_SOCKETS

    def enter(self) -> None:
        """Open what shows the sandbox's sockets and System V segments. A second call has no effect."""
        if self.is_entered:
            return
        self.is_entered = True
        try:
            entered = sandbox_entry.enter(self.sandbox_agent)
            self.sockets, self.segments = entered.sockets, entered.segments
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOMEM):  # no fork now: the next look tries again
                self.is_entered = False
            elif not isinstance(error, FileNotFoundError | ProcessLookupError):  # else the sandbox has ended
                sys.stderr.write(
                    f"sandbox {self.name}: its sockets and System V segments are not counted as memory: {error}\n"
                )

    def segment_bytes(self) -> Mapping[int, int]:
        """Return the bytes of each System V segment of the sandbox, by its id."""
        self.enter()
        return process_memory.segment_bytes(self.segments) if self.segments is not None else {}

    def upper_bound(self, sockets: Mapping[int, int]) -> int:
        """Return the bytes of the sandbox without memory files that no process has mapped."""
        pids = process_memory.descendants(self.sandbox_agent)
        return process_memory.upper_bound(pids) + process_memory.tmpfs_bytes(self.sandbox_agent) + sum(sockets.values())

    def close(self) -> None:
        os.close(self.handle)
        if self.sockets is not None:
            self.sockets.close()
        if self.segments is not None:
            os.close(self.segments)


class Guard:
    def __init__(self, node_agent: socket.socket) -> None:
        self._node_agent = node_agent
        self._watched: dict[str, Watched] = {}
        self._unseen: dict[str, tuple[float, Mapping[str, Any]]] = {}
        """Sandbox whose sandbox agent was not seen -> time of the second look, and the message."""
        self._shared = process_memory.host_shared_bytes()
        self._reserve = reserve(whole_memory())
        self._look_at = 0.0
        self._any_watched = threading.Event()

    def run(self) -> None:
        """Watch until the node agent is gone."""
        threading.Thread(target=self._stop_growth, daemon=True).start()
        self._node_agent.setblocking(False)
        with suppress(EOFError, ConnectionError):
            while True:
                select.select([self._node_agent], [], [], self._seconds_to_wait())
                for message in messages.received(self._node_agent):
                    self._take(message)
                self._look_at_machine()
                for due, unseen in list(self._unseen.values()):
                    if due <= time.monotonic():
                        self._take(unseen)
                # One sandbox at a time: messages, and the look at the free memory, do not wait for all others.
                if self._watched:
                    sandbox, watched = min(self._watched.items(), key=lambda item: item[1].due)
                    if watched.due <= time.monotonic():
                        self._check(sandbox, watched)

    def _take(self, message: Mapping[str, Any]) -> None:
        if "forget" in message:
            return self._drop(message["forget"])
        sandbox = message["watch"]
        looked_before = self._unseen.pop(sandbox, None) is not None
        if (sandbox_agent := process_memory.find_sandbox_agent(message["launcher"])) is not None:
            with suppress(ProcessLookupError):
                self._watched[sandbox] = Watched(sandbox, sandbox_agent, os.pidfd_open(sandbox_agent), message["limit"])
                self._any_watched.set()
        elif not looked_before:
            self._unseen[sandbox] = time.monotonic() + SECOND_LOOK_SECONDS, message
        elif os.path.exists(f"/proc/{message['launcher']}"):  # else the sandbox has ended
            sys.stderr.write(f"the memory of sandbox {sandbox} is not limited: its processes are not seen\n")

    def _drop(self, sandbox: str) -> None:
        self._unseen.pop(sandbox, None)
        if (watched := self._watched.pop(sandbox, None)) is not None:
            watched.close()
            if not self._watched:
                self._any_watched.clear()

    def _seconds_to_wait(self) -> float | None:
        due = [second_look for second_look, _ in self._unseen.values()]
        if self._watched:
            due += [self._look_at, *(watched.due for watched in self._watched.values())]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _look_at_machine(self) -> None:
        if time.monotonic() < self._look_at:
            return
        shared = process_memory.host_shared_bytes()
        if shared > self._shared + UNEXPLAINED:
            for sandbox, watched in self._watched.items():
                if not watched.is_gone():
                    self._measure(sandbox, watched)
            self._shared = shared
        self._shared = min(self._shared, shared)
        if (free := free_memory()) < self._reserve:
            self._make_room(free)
        if refuses_thread():
            with suppress(BlockingIOError):  # the node agent has not read thousands of reports
                messages.send(self._node_agent, {"refusals": 1})
        # looks more often as memory runs out
        soon = (free - self._reserve) / limit.GROWTH
        self._look_at = time.monotonic() + min(LOOK_SECONDS, max(SHORTEST_LOOK_SECONDS, soon))

    def _make_room(self, free: int) -> None:
        """End the largest processes of the sandbox with the most memory, before the kernel ends any process of the job.

        Memory can run out although each sandbox is within its limit: if sandboxes were promised more memory than there is,
        and by kernel memory that nobody can count.
        """
        largest = None
        for sandbox, watched in self._watched.items():
            if process_memory.still_ending(watched.sandbox_agent, watched.ending):
                return  # the kernel is freeing memory
            memory = process_memory.measure(
                watched.sandbox_agent, watched.socket_bytes(), segments=watched.segment_bytes()
            )
            if len(memory.processes) > 1 and (largest is None or memory.used > largest[2].used):
                largest = sandbox, watched, memory
        if largest is not None:
            sandbox, watched, memory = largest
            self._end(sandbox, watched, memory, limit.to_end(memory, memory.used / 2, -1), free)

    def _stop_growth(self) -> None:
        """While memory runs out, end processes of all sandboxes that have grown beyond their limits. For a thread of its own.

        An exact measurement waits for a lock that a growing process may hold while it waits for a CPU behind hundreds of
        others. Meanwhile a few cores fill gigabytes. So sandboxes are measured roughly here, and without such a lock.
        """
        before, looked_at = free_memory(), time.monotonic()
        while True:
            time.sleep(SHORTEST_LOOK_SECONDS if before < 4 * self._reserve else LOOK_SECONDS)
            self._any_watched.wait()
            free, now = free_memory(), time.monotonic()
            left = free - max(0.0, (before - free) / (now - looked_at)) * REACTION_SECONDS
            before, looked_at = free, now
            if left < self._reserve:
                for sandbox, watched in list(self._watched.items()):
                    memory = process_memory.glance(watched.sandbox_agent)
                    # pages that several processes share count several times here, and do not count as growth
                    if memory.used - watched.bound > watched.limit * (1 - limit.TARGET):
                        self._end(sandbox, watched, memory, limit.to_end(memory, watched.limit, -1), None)

    def _check(self, sandbox: str, watched: Watched) -> None:
        """Measure exactly only where a cheap upper bound is near the limit."""
        if watched.is_gone():
            return self._drop(sandbox)
        watched.bound = bound = watched.upper_bound(watched.socket_bytes()) + watched.unseen
        if bound > watched.limit * limit.TARGET:
            self._measure(sandbox, watched)
        else:
            watched.due = time.monotonic() + limit.pause(bound, watched.limit)

    def _measure(self, sandbox: str, watched: Watched) -> None:
        sockets = watched.socket_bytes()
        memory = process_memory.measure(watched.sandbox_agent, sockets, watched.ending, watched.segment_bytes())
        # A process that is ending may have written since the measurement before. That is no reason to end others.
        before = memory.files if watched.ending else watched.files
        ended = limit.to_end(memory, watched.limit, before)
        watched.files = limit.files_to_compare(memory.files, watched.limit, before)
        watched.unseen = max(0, memory.used - watched.upper_bound(sockets))
        if ended:
            self._end(sandbox, watched, memory, ended, None)
        watched.ending = process_memory.still_ending(watched.sandbox_agent, watched.ending) | {
            process.pid for process in ended
        }
        watched.due = time.monotonic() + limit.pause(memory.used, watched.limit)

    def _end(
        self, sandbox: str, watched: Watched, memory: SandboxMemory, ended: Sequence[ProcessMemory], free: int | None
    ) -> None:
        """Report, then end processes. `free`: bytes left in the allocation, if this is the reason."""
        if ended:
            named = [f"{process.name} (process {process.inside_pid})" for process in ended[:3]]
            parts = {"used": memory.used, "files": memory.files, "sockets": memory.sockets}
            told = {"over": sandbox, **parts, "ended": len(ended), "named": named, "free": free}
            with suppress(BlockingIOError):  # the node agent has not read thousands of reports
                messages.send(self._node_agent, told)
            if not watched.is_gone():
                _end(ended)
        watched.ending |= {process.pid for process in ended}


def _end(processes: Sequence[ProcessMemory]) -> None:
    """Kill each process, unless another process has its id by now, and free their memory."""
    with ExitStack() as stack:
        handles = []
        for process in processes:
            with suppress(ProcessLookupError):
                handles.append(handle := os.pidfd_open(process.pid))
                stack.callback(os.close, handle)
                if process_memory.inside_pid(process.pid) == process.inside_pid:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        for handle in handles:
            # A killed process frees its memory when it gets a CPU, for which hundreds may wait. Its exit is not waited for.
            _LIBC.syscall(_PROCESS_MRELEASE, handle, 0)


def _run_first() -> None:
    """Let this process not wait for a CPU behind the hundreds of processes of tasks. An ordinary user may not; then a
    session of its own gives the guard a share of the CPUs as large as that of one sandbox, if sched_autogroup_enabled is
    set (sched(7))."""
    with suppress(OSError):
        os.setsid()
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        with open("/proc/self/autogroup", "w") as autogroup:
            autogroup.write("-20")


if __name__ == "__main__":
    # The terminal's Ctrl-C and the job's SIGTERM are for the node agent, which the guard outlives.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _run_first()
    Guard(socket.socket(fileno=sys.stdin.fileno())).run()
