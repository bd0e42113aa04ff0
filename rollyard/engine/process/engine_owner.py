"""Owner of an engine's processes: a small process between the model server and its engine.

    python -I -S engine_owner.py        (its standard input is a Unix socket)

An engine has children, and some of them have a session of their own, so that the end of the engine's process group does
not reach them. The owner adopts orphans (PR_SET_CHILD_SUBREAPER), so every process of the engine, and no other process of
the model server, is below the owner in the process tree. When the engine has ended, or the model server asks for its end
or dies itself, the owner ends all of them, and removes what they left in /dev/shm.

It reads one line from the socket, an object with `argv`, `env`, `record` (see `shared_memory.py`) and the limits in
seconds. It answers with lines: `{"pid"}` or `{"error"}`, then `{"code"}` when the engine has ended, then a report. The
end of the input asks for the engine's end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # with -I, Python does not look for our packages
    sys.path.append(str(Path(__file__).resolve().parents[3]))
from rollyard.core.process_tree import adopt_orphans, descendants, die_with, kill_below, reap
from rollyard.engine.process.shared_memory import EngineFiles

LOOK_SECONDS = 0.2
PAUSE_SECONDS = 0.02
MOST_NAMES = 20


def main() -> None:
    adopt_orphans()
    # Slurm may send a signal to all processes of a job. The model server alone decides when the engine ends. The engine
    # does not inherit these handlers.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    with socket.socket(fileno=os.dup(0)) as link:
        line = link.makefile("rb").readline()
        if line.endswith(b"\n"):  # otherwise the model server has died
            EngineOwner(link, json.loads(line)).run()


class EngineOwner:
    def __init__(self, link: socket.socket, order: dict[str, Any]) -> None:
        self._link = link
        self._order = order
        self._wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._files = EngineFiles(None if order["record"] is None else Path(order["record"]))
        self._stop_requested = False
        self._code: int | None = None
        """Return code of the engine as in `subprocess`; None while it runs."""

    def run(self) -> None:
        try:
            engine = subprocess.Popen(
                self._order["argv"],
                stdin=subprocess.DEVNULL,
                env=self._order["env"],
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),  # if the owner and the model server are killed
            )
        except OSError as error:
            self._send({"error": error.strerror})
            return
        self._engine = engine.pid
        self._send({"pid": self._engine})
        while self._code is None and not self._stop_requested:
            self._look()
            self._wait(LOOK_SECONDS)
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._engine, signal.SIGTERM)
            self._wait_until(lambda: self._code is not None, self._order["stop_seconds"])
        self._look()  # some of the engine's processes live longer than the engine
        if self._code is not None:
            self._send({"code": self._code})
            self._wait_until(lambda: not descendants(os.getpid()), self._order["clean_up_seconds"])
        names, left = kill_below(self._order["kill_seconds"])
        removed, kept = self._files.remove()
        if self._code is None and self._engine not in left:
            self._send({"code": -signal.SIGKILL})
        self._send(
            {
                "killed": sorted(names)[:MOST_NAMES],
                "left": [f"{name} (pid {pid})" for pid, name in left.items()][:MOST_NAMES],
                "removed": removed[:MOST_NAMES],
                "kept": kept[:MOST_NAMES],
            }
        )
        engine.returncode = self._code or 0  # it is collected already

    def _look(self) -> None:
        self._files.look(lambda: descendants(os.getpid()))

    def _wait_until(self, condition: Any, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            self._wait(PAUSE_SECONDS)

    def _wait(self, seconds: float) -> None:
        """Wait until a child ends, the model server asks for the end, or the time is up."""
        sources = [self._wake] if self._stop_requested else [self._wake, self._link.fileno()]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._link.fileno() in ready:
            try:
                self._stop_requested = not self._link.recv(4096)
            except OSError:  # the model server has died
                self._stop_requested = True
        status = reap().get(self._engine)
        if status is not None:
            self._code = os.waitstatus_to_exitcode(status)

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the model server has died
            self._link.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
