"""Calls on the weights of a pool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from rollyard.client.object_client import ObjectClient, object_path
from rollyard.client.weights_receiver import WeightsReceiver
from rollyard.core.backoff import Backoff, until_done
from rollyard.core.errors import ApiError, Unavailable
from rollyard.kinds.weights import WeightsStatus, WeightsUpdate

log = logging.getLogger(__name__)

WEIGHTS_POLL_SECONDS = 0.5
RECEIVERS_POLL_SECONDS = 0.1
"""Seconds between two looks for engines that wait for weights. Agents' requests wait meanwhile, so the time is short."""


class WeightsClient(ObjectClient):
    async def weights_status(self, namespace: str, pool: str) -> WeightsStatus:
        """Return the present and earlier weights of a pool, and the progress of the last update. Raises NotFound."""
        return WeightsStatus.model_validate(await self._http.json("GET", _weights_path(namespace, pool)))

    async def update_weights(self, namespace: str, pool: str, update: WeightsUpdate) -> WeightsStatus:
        """Begin an update, and return when the server has stored it. If the same update is running, return its state.

        If the version is current and no update is running, only failed endpoints load the version again.

        Raises NotFound. Raises Invalid if the engines cannot be updated. Raises Conflict if the version already names
        other weights, if an update to this version is running with another mode, transfer or time limit, or if the
        pool is being deleted.
        """
        body = update.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return WeightsStatus.model_validate(await self._http.json("POST", _weights_path(namespace, pool), body=body))

    async def wait_weights(self, namespace: str, pool: str, version: str) -> WeightsStatus:
        """Wait without a time limit until the update to this version is done, failed, or superseded by another update. Log
        what the update itself waits for."""
        said = ""
        while True:
            found = await until_done(lambda: self.weights_status(namespace, pool), f"waiting for weights {version}")
            if found.operation is None or found.operation.target.version != version or not found.operation.is_running:
                return found
            if found.operation.message not in ("", said):
                said = found.operation.message
                log.warning("still waiting for weights %s: it %s", version, said)
            await asyncio.sleep(WEIGHTS_POLL_SECONDS)

    async def transfer_weights(
        self,
        namespace: str,
        pool: str,
        update: WeightsUpdate,
        send: Callable[[Sequence[WeightsReceiver]], Awaitable[None]],
    ) -> WeightsStatus:
        """Begin an update with `transfer`, and move the weights into every waiting engine until the update has ended.

        `send` gets the engines that wait at the same time: in modes Pause and Abort all engines of the pool, in Drain at
        most a quarter of them, but at least one. If `send` raises an ApiError, the error is logged and `send` is called
        again. An engine that gets no weights from `send` loads the folder `update.path`. Raises the errors of
        `update_weights`.
        """
        found, sent, backoff = await self.update_weights(namespace, pool, update), set[str](), Backoff()
        while (last := found.operation) is not None and last.target.version == update.version and last.is_running:
            waiting = set(last.receivers)
            sent &= waiting  # an engine that leaves the list and comes back needs the weights again
            try:
                if new := sorted(waiting - sent):
                    await send([WeightsReceiver(self._http, _weights_path(namespace, pool), id) for id in new])
                    sent |= waiting
                    backoff.reset()
            except ApiError as error:
                log.warning("weights %s did not reach %s: %s", update.version, ", ".join(new), error)
                await backoff.wait()
            await asyncio.sleep(RECEIVERS_POLL_SECONDS)
            # the engines continue the update even while the server is unreachable
            with contextlib.suppress(Unavailable):
                found = await self.weights_status(namespace, pool)
        return found


def _weights_path(namespace: str, pool: str) -> str:
    return object_path("InferencePool", namespace, pool) + "/weights"
