"""The command `rollyard node-agent`, which runs in an allocation's job.

Exit status: 0 after a signal (SIGTERM, SIGUSR1) or a drain; 1 if the node agent cannot work on this node, or hangs; 3 if
another process has replaced this process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import ssl
from pathlib import Path

import aiohttp

from rollyard.client.server_link import ServerLink
from rollyard.core.aio import running
from rollyard.core.errors import Fenced, RollyardError
from rollyard.core.exit_codes import REPLACED_EXIT
from rollyard.core.freed_memory import keep_freed_memory
from rollyard.core.lease_time import LEASE_SECONDS
from rollyard.core.telemetry import set_up_logging
from rollyard.node import agent
from rollyard.node.own_limits import end_late, raise_soft_limits
from rollyard.tasks.installed_handlers import load_handlers

log = logging.getLogger(__name__)

STUCK_SECONDS = 4 * LEASE_SECONDS
"""The process ends if its event loop is blocked for this many seconds. The leases of the process have expired before
that, after LEASE_SECONDS."""


def main(folder: Path) -> int:
    """Run the node agent of the allocation in `folder`; return the exit status."""
    keep_freed_memory()
    raise_soft_limits()
    end_late()
    set_up_logging()
    os.umask(0o077)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time: more threads would only add costs
    # transformers warns about missing PyTorch, which is not needed here
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        return asyncio.run(_run(ServerLink.open(folder)))
    except Fenced as error:
        log.error("%s", error)
        return REPLACED_EXIT
    except RollyardError as error:
        log.critical("%s", error)  # the reason for this exit, which the allocation's condition quotes
        return 1


async def _run(link: ServerLink) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        asyncio.get_running_loop().add_signal_handler(number, _signalled, number, stop)
    async with link.session() as http, _models(link.tls) as models:
        # Loading imports plug-ins, which may block the loop for long. So the loop is watched only afterwards.
        handlers = load_handlers()
        try:
            async with running(end_when_stuck(STUCK_SECONDS)):
                await agent.run(link, http, models, handlers, stop)
        finally:
            faulthandler.cancel_dump_traceback_later()
            await handlers.close()
    return 0


async def end_when_stuck(seconds: float) -> None:
    """If the event loop is blocked for `seconds`, print where, and end this process with status 1.

    A task handler that blocks would hold the loop for ever, and a job is replaced only after its process has ended.
    """
    while True:
        faulthandler.dump_traceback_later(seconds, exit=True)
        await asyncio.sleep(seconds / 10)


def _signalled(number: signal.Signals, stop: asyncio.Event) -> None:
    log.warning("received %s: handing back all rollouts", number.name)
    stop.set()


def _models(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """Make the HTTP session for model servers: many long streams, each with its own limits."""
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0))
