"""An engine with all its processes, also those with a session of their own, which start and end as a whole.

The engine is a child of its owner (`engine_owner.py`), a small process that adopts what the engine's processes leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from rollyard.core.aio import wait_or_timeout
from rollyard.engine.process import child_process, engine_owner
from rollyard.engine.process.child_process import EngineCommand, EngineFailed, environment
from rollyard.engine.process.scratch_folder import MARK
from rollyard.engine.process.shared_memory import RECORD
from rollyard.kinds.base import Reason

log = logging.getLogger(__name__)

KILL_SECONDS = 20.0
"""Time for processes to end after KILL. Those that wait for a device in the kernel may need longer."""
OWNER_SECONDS = 10.0
"""Time that the owner needs itself, in addition to its limits for the engine."""


class EngineRemains(EngineFailed):
    """Processes of an ended engine may still run. They may hold what another engine needs, so none is started here."""


class OwnedEngine:
    """A running engine."""

    def __init__(self, owner: asyncio.subprocess.Process, link: asyncio.Transport, report: _OwnerReport) -> None:
        self._owner = owner
        self._link = link
        self._report = report
        self._limit = child_process.STOP_SECONDS + child_process.CLEAN_UP_SECONDS + KILL_SECONDS + OWNER_SECONDS

    @property
    def pid(self) -> int:
        return int(self._report.pid or 0)

    @property
    def returncode(self) -> int | None:
        """Return code, -n for signal n; None while the engine runs."""
        return self._report.code

    async def wait(self) -> int:
        """Wait for the engine's end. Return its return code. Raises EngineFailed if the owner was
        killed."""
        await self._report.engine_ended.wait()
        if self._report.code is None:
            raise EngineFailed(Reason("EngineFailed", "the owner of the engine's processes was killed"))
        return self._report.code

    async def end(self) -> None:
        """Send TERM to the engine, then KILL to all its processes. Return when they have ended and their files in
        /dev/shm are removed.

        Raises EngineRemains if some of them do not end, or if nobody knows.
        """
        if not self._link.is_closing():
            self._link.write_eof()
        await wait_or_timeout(self._report.closed, self._limit)
        with contextlib.suppress(ProcessLookupError):
            self._owner.kill()
        await self._owner.wait()
        self._link.close()
        if self._report.last is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            why = "the owner of the engine's processes was killed, and some of them may still run"
            raise EngineRemains(Reason("EngineFailed", why))
        _log_report(self._report.last)
        if left := self._report.last["left"]:
            why = f"processes of the ended engine have not ended {KILL_SECONDS:g} s after KILL: {', '.join(left)}"
            raise EngineRemains(Reason("EngineFailed", why))


async def start_engine(command: EngineCommand, scratch: Path | None = None, **streams: Any) -> OwnedEngine:
    """Start the engine. `scratch`: the folder that `scratch_folder` made. Raises EngineFailed if the engine's program
    cannot be started."""
    ours, theirs = socket.socketpair()
    with theirs:
        link, report = await asyncio.get_running_loop().create_connection(_OwnerReport, sock=ours)
        try:
            argv = (sys.executable, "-I", "-S", engine_owner.__file__)
            owner = await asyncio.create_subprocess_exec(
                *argv, stdin=theirs.fileno(), start_new_session=True, **streams
            )
        except BaseException:
            link.close()
            raise
    engine = OwnedEngine(owner, link, report)
    env = environment(command)
    if scratch is not None:
        env |= {MARK: str(scratch), "SPT_NOENV": "1"}  # without it, setproctitle overwrites the process's variables
    order = {
        "argv": command.argv,
        "env": env,
        "record": None if scratch is None else str(scratch / RECORD),
        "stop_seconds": child_process.STOP_SECONDS,
        "clean_up_seconds": child_process.CLEAN_UP_SECONDS,
        "kill_seconds": KILL_SECONDS,
    }
    link.write(json.dumps(order).encode() + b"\n")
    try:
        await report.started.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(EngineRemains):
            await engine.end()
        raise
    if report.pid is None:
        link.close()
        await owner.wait()
        why = f"{command.argv[0]} cannot be started: {report.error or 'the owner of its processes was killed'}"
        raise EngineFailed(Reason("EngineMissing", why))
    return engine


class _OwnerReport(asyncio.Protocol):
    """Messages of an owner."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.error: str | None = None
        self.code: int | None = None
        self.last: dict[str, list[str]] | None = None
        """The report after the end of all processes."""
        self.started, self.engine_ended, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for message in map(json.loads, lines):
            if "left" in message:
                self.last = message
            self.pid = message.get("pid", self.pid)
            self.error = message.get("error", self.error)
            self.code = message.get("code", self.code)
        self._set_events()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._set_events()

    def _set_events(self) -> None:
        if self.pid is not None or self.closed.is_set():
            self.started.set()
        if self.code is not None or self.closed.is_set():
            self.engine_ended.set()


def _log_report(report: dict[str, list[str]]) -> None:
    if report["killed"]:
        log.warning("the ended engine had left processes, which were killed: %s", ", ".join(report["killed"]))
    if report["removed"]:
        log.warning("removed what the ended engine had left in /dev/shm: %s", ", ".join(report["removed"]))
    if report["kept"]:
        log.warning(
            "files that the ended engine has used are still in /dev/shm, because another program may need them: %s; "
            "delete them if none does",
            ", ".join(report["kept"]),
        )
