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


async def freeze_requests(epochs: EpochRelay, control: EngineControl) -> None:
    """Stop steps and keep running requests. Returns when all output has been read. Raises ControlFailed."""
    await control.pause("keep")
    if not control.labels_tokens:
        epochs.repeat_unanswered()
    try:
        async with asyncio.timeout(READ_SECONDS):
            await epochs.wait_until_read(control.round_trip)
    except TimeoutError:
        raise ControlFailed(f"the engine did not stop within {READ_SECONDS:g} s after a pause") from None


async def end_requests(
    epochs: EpochRelay, control: EngineControl, *, drain: bool, ensure_alive: Callable[[], None]
) -> None:
    """End all requests. `drain`: wait until they end by themselves. Raises ControlFailed, as `ensure_alive` does."""
    if drain:
        await epochs.wait_until_idle(DRAIN_SECONDS)
        ensure_alive()
    if control.can_pause:
        await control.pause("abort")
        await epochs.wait_until_idle(ABORT_SECONDS)
    epochs.truncate_all()
    await epochs.wait_until_idle(ABORT_SECONDS)
