"""An engine's process and what it started: a group of their own, begun and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

from rollyard.engines.command import EngineCommand

STOP_SECONDS = 10.0


class EngineFailed(Exception):
    """The engine cannot be kept alive; the message is for the pool's condition."""


async def start_engine(command: EngineCommand, **streams: Any) -> asyncio.subprocess.Process:
    """Raises EngineFailed."""
    try:
        return await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, **command.env},
            start_new_session=True,
            **streams,
        )
    except OSError as error:
        raise EngineFailed(f"EngineMissing: {command.argv[0]} cannot be started: {error.strerror}") from None


async def end_engine(process: asyncio.subprocess.Process) -> None:
    """TERM, then KILL, to the engine's whole group."""
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=STOP_SECONDS)
    # Also when it has ended: workers that outlive it would keep its memory from the next one.
    _signal_group(process.pid, signal.SIGKILL)
    await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=STOP_SECONDS)


def how_it_ended(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
