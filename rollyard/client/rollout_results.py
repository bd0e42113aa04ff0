"""Results of rollouts for a framework that waits on one call for as long as it takes."""

from __future__ import annotations

import logging

from rollyard.client import AsyncClient
from rollyard.core.backoff import Backoff
from rollyard.core.errors import Unavailable
from rollyard.kinds.rollout import RolloutRequest
from rollyard.trajectory import Trajectory

log = logging.getLogger(__name__)


async def result_of(client: AsyncClient, request: RolloutRequest, namespace: str | None = None) -> Trajectory:
    """Submit a rollout that has an id, or attach to it, and wait for its end without a time limit.

    A server that cannot be reached is waited for. Raises the ApiErrors of a submit, such as Invalid.
    """
    backoff, logged = Backoff(), False
    while True:
        try:
            (id,) = await client.submit([request], namespace)
            return await client.wait(id, namespace)
        except Unavailable as error:
            if not logged:
                logged = True
                log.warning("still trying to submit rollout %s: %s", request.id, error)
            await backoff.wait(error.retry_after or 0)
