"""Supervisor inside the server's job. It restarts the server after a crash, and stops it before Slurm ends the job.

Exit status: 3 if a newer server has the folder, otherwise 0. In both cases the job ends, and Slurm starts the next
queued job of the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence

from rollyard.core.aio import running, wait_or_timeout
from rollyard.core.exit_codes import REPLACED_EXIT
from rollyard.core.telemetry import set_up_logging
from rollyard.server_process.job.job_folder import ServerJobFolder

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
STEADY_SECONDS = 60.0
"""If the server has run for longer than this before it exits, the start counts as successful: the pause is short again."""
STOP_SECONDS = 20.0


def run(place: ServerJobFolder, command: Sequence[str]) -> int:
    """Run until a stop signal (TERM, INT, or USR1 before the walltime ends), or until the server ends with status 0 or is
    superseded. Return the exit status. If no server is desired, return at once."""
    set_up_logging()
    os.umask(0o077)
    if place.await_script() is None:
        log.info("a server on %s is no longer desired; ending", place.data)
        return 0
    return asyncio.run(_supervise(command))


async def _supervise(command: Sequence[str]) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    pause = FIRST_PAUSE_SECONDS
    while True:
        began = asyncio.get_running_loop().time()
        status = await _serve_once(command, stop)
        if stop.is_set() or status in (0, REPLACED_EXIT):
            return status if status == REPLACED_EXIT else 0
        if asyncio.get_running_loop().time() - began > STEADY_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        log.error("the server ended with status %d; restarting it in %g s", status, pause)
        if await wait_or_timeout(stop, pause):
            return 0
        pause = min(MAX_PAUSE_SECONDS, 2 * pause)


async def _serve_once(command: Sequence[str], stop: asyncio.Event) -> int:
    """Run the server until it ends, or stop it when `stop` is set; return its exit status, which is negative for a
    signal."""
    child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    ended = asyncio.create_task(child.wait())
    async with running(stop.wait()) as stopped:
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        child.terminate()
        await asyncio.wait({ended}, timeout=STOP_SECONDS)
        if not ended.done():
            child.kill()
    return await ended
