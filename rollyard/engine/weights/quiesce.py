"""How requests that run come to a stop before their engine's weights change, by the mode of the order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollyard.engine.proxy.epochs import Generations
from rollyard.engine.weights.engine_control import ControlFailed, EngineControl

DRAIN_SECONDS = 600.0
"""For running requests to end; what is left then is handed back."""
HAND_BACK_SECONDS = 5.0
SETTLE_SECONDS = 60.0


async def freeze(generations: Generations, control: EngineControl) -> None:
    """Keep what runs: no step runs any more, and all that was made has been read. Raises ControlFailed."""
    await control.pause("keep")
    if not control.labels:
        generations.ask_again()
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            await generations.settled(control.turn)
    except TimeoutError:
        raise ControlFailed(f"the engine did not stop within {SETTLE_SECONDS:g} s after a pause") from None


async def end(generations: Generations, control: EngineControl, *, drain: bool, still: Callable[[], None]) -> None:
    """Nothing runs any more. `drain`: it ends by itself; `still` raises ControlFailed, as this does, when the engine went."""
    if drain:
        await generations.ended(DRAIN_SECONDS)
        still()
    if control.pauses:
        await control.pause("abort")
        await generations.ended(HAND_BACK_SECONDS)
    generations.cut()
    await generations.ended(HAND_BACK_SECONDS)
