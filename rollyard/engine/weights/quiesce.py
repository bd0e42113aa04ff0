"""Stops running requests before the weights of their engine change, by the mode of the update."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollyard.engine.proxy.epochs import EpochRelay
from rollyard.engine.weights.engine_control import ControlFailed, EngineControl

DRAIN_SECONDS = 600.0
"""Limit for running requests to end. Then the remaining ones are aborted."""
ABORT_SECONDS = 5.0
READ_SECONDS = 60.0


async def freeze_requests(generations: EpochRelay, control: EngineControl) -> None:
    """Stop steps and keep running requests. Returns when all output has been read. Raises ControlFailed."""
    await control.pause("keep")
    if not control.labels_tokens:
        generations.repeat_unanswered()
    try:
        async with asyncio.timeout(READ_SECONDS):
            await generations.wait_until_read(control.round_trip)
    except TimeoutError:
        raise ControlFailed(f"the engine did not stop within {READ_SECONDS:g} s after a pause") from None


async def end_requests(
    generations: EpochRelay, control: EngineControl, *, drain: bool, still: Callable[[], None]
) -> None:
    """End all requests. `drain`: wait until they end by themselves. If the engine is gone, `still` raises ControlFailed."""
    if drain:
        await generations.wait_until_idle(DRAIN_SECONDS)
        still()
    if control.can_pause:
        await control.pause("abort")
        await generations.wait_until_idle(ABORT_SECONDS)
    generations.truncate_all()
    await generations.wait_until_idle(ABORT_SECONDS)
