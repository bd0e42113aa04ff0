"""Stops the running requests of an engine before its weights change. The mode of the update decides how."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollyard.engine.proxy.epochs import EpochRelay
from rollyard.engine.weights.engine_control import ControlFailed, EngineControl

DRAIN_SECONDS = 600.0
"""Limit for running requests to end. Requests that still run after this time are aborted."""
ABORT_SECONDS = 5.0
READ_SECONDS = 60.0


async def freeze_requests(epochs: EpochRelay, control: EngineControl) -> None:
    """Pause the engine and keep its running requests. Return when all output has been read. Raises ControlFailed."""
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
    """End all requests. `drain`: first wait for requests to end by themselves. Raises ControlFailed, and the errors of
    `ensure_alive`."""
    if drain:
        await epochs.wait_until_idle(DRAIN_SECONDS)
        ensure_alive()
    if control.can_pause:
        await control.pause("abort")
        await epochs.wait_until_idle(ABORT_SECONDS)
    epochs.truncate_all()
    await epochs.wait_until_idle(ABORT_SECONDS)
