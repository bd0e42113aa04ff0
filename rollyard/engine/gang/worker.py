"""The process of a gang on a node other than rank 0's. It runs this node's part of the engine until rank 0 leaves."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

from rollyard.core.aio import running
from rollyard.engine.gang.rendezvous import Gang
from rollyard.engine.launch.launch_plan import LaunchPlan, with_weights
from rollyard.engine.process.child_process import EngineCommand, exit_text
from rollyard.engine.process.owned_engine import start_engine
from rollyard.kinds.inference_pool import InferencePoolSpec

log = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
"""Time for rank 0 to leave after this node's part of the engine has ended. At a normal end, this part may end shortly
before rank 0 leaves."""


async def run_worker(gang: Gang, spec: InferencePoolSpec, uds: Path) -> int:
    """Run this node's part of the engine. Return 0 after SIGTERM or SIGINT, or when rank 0 has left; 1 if this part has
    died.

    Raises EngineFailed, OSError, Unavailable.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(stop.wait()) as stopped, running(_join_and_run(gang, spec, uds)) as meeting:
        await asyncio.wait({meeting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not meeting.done():
            return 0
        engine = await start_engine(meeting.result(), uds.parent)
        async with running(engine.wait()) as death, running(gang.wait_until_left()) as over:
            try:
                await asyncio.wait({death, over, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if death.done():
                    await asyncio.wait({over, stopped}, return_when=asyncio.FIRST_COMPLETED, timeout=GRACE_SECONDS)
                if over.done() or stop.is_set():
                    return 0
                how = exit_text(death.result())
            finally:
                await engine.end()
        log.critical("rank %d of the engine has died: %s", gang.rank, how)
        return 1


async def _join_and_run(gang: Gang, spec: InferencePoolSpec, uds: Path) -> EngineCommand:
    place = await gang.join()
    return await LaunchPlan(with_weights(spec, place.model), uds, place)()
