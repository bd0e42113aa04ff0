"""A program that the model server starts for one answer: a process group, which is started and ended as a whole.

Engines live long and have more processes: `owned_engine.py` starts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rollyard
from rollyard.core.errors import RollyardError
from rollyard.core.exit_codes import exit_code_text
from rollyard.kinds.base import Reason

STOP_SECONDS = 10.0
CLEAN_UP_SECONDS = 3.0
"""Time that the children of an ended process have. Python's resource tracker deletes its semaphores in it, which would
stay in /dev/shm."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the job's environment and override it."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set if the job's environment does not have them."""
    foreign: bool = False
    """True: the engine runs in another interpreter, which must not import this process's packages."""


class EngineFailed(RollyardError):
    """The engine cannot be started or kept alive. The pool's condition shows the reason."""

    def __init__(self, why: Reason) -> None:
        super().__init__(str(why))
        self.why = why


async def start_child(command: EngineCommand, **streams: Any) -> asyncio.subprocess.Process:
    """Start a program. Raises EngineFailed if this fails."""
    try:
        return await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=asyncio.subprocess.DEVNULL,
            env=environment(command),
            start_new_session=True,
            **streams,
        )
    except OSError as error:
        why = f"{command.argv[0]} cannot be started: {error.strerror}"
        raise EngineFailed(Reason("EngineMissing", why)) from None


def environment(command: EngineCommand) -> dict[str, str]:
    """Return the environment of the command's process."""
    env = dict(os.environ)
    if (
        command.foreign and "PYTHONPATH" in env
    ):  # unpack_python.sh adds our packages; the engine must not import our numpy
        ours = Path(rollyard.__file__).parents[1]
        kept = [part for part in env["PYTHONPATH"].split(os.pathsep) if part and Path(part) != ours]
        env["PYTHONPATH"] = os.pathsep.join(kept)
    return {**command.defaults, **env, **command.env}


async def end_child(process: asyncio.subprocess.Process) -> None:
    """Send TERM, then KILL, to the whole group."""
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError, TimeoutError):
        async with asyncio.timeout(CLEAN_UP_SECONDS):
            while process.returncode is not None:
                os.killpg(process.pid, 0)
                await asyncio.sleep(0.01)
    # KILL is sent even if the leader has ended: surviving children would keep memory that others need.
    _signal_group(process.pid, signal.SIGKILL)
    await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=STOP_SECONDS)


def exit_text(code: int) -> str:
    """Describe asyncio's return code, which is -n for signal n."""
    return exit_code_text(128 - code if code < 0 else code)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
