"""Checks of a model's folder before a pool or an update is accepted, where the server can read the folder."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import Pool
from rollyard.kinds.weights import WeightsUpdate
from rollyard.model_folder.serving_check import model_causes, update_causes

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""Longest wait for a folder. A folder that takes longer counts as one that the server cannot read."""


async def check_model(pool: Pool) -> None:
    """Raise Invalid if the pool's engine could never serve its model."""
    if not isinstance(pool, InferencePool):
        return
    model, engine = pool.spec.model, pool.spec.engine
    if causes := await _within_limit(lambda: model_causes(model, engine)):
        raise Invalid(f"InferencePool {pool.metadata.name!r} could never serve: {_text(causes)}", causes=causes)


async def check_update(pool: InferencePool, update: WeightsUpdate) -> None:
    """Raise Invalid if the pool's engines could never load the weights of an update."""
    model, engine = pool.spec.model, pool.spec.engine
    if causes := await _within_limit(lambda: update_causes(model, engine, update)):
        raise Invalid(f"these weights could never be served: {_text(causes)}", causes=causes)


def _text(causes: Sequence[Cause]) -> str:
    return "; ".join(f"{cause.field}: {cause.message}" for cause in causes)


async def _within_limit(check: Callable[[], list[Cause]]) -> list[Cause]:
    """Run the check in a thread; no causes if it takes too long or fails. The thread is a daemon: a dead file server may
    hold it for ever, and must not hold the end of this process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[Cause]] = loop.create_future()

    def settle(causes: list[Cause]) -> None:
        if not done.done():
            done.set_result(causes)

    def run() -> None:
        try:
            causes = check()
        except (OSError, ValueError) as error:
            log.warning("a model's folder could not be checked: %s", error)
            causes = []
        loop.call_soon_threadsafe(settle, causes)

    threading.Thread(target=run, name="model-check", daemon=True).start()
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await done
    except TimeoutError:
        log.warning("a model's folder could not be checked within %g s", CHECK_SECONDS)
        return []
