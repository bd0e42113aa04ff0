"""`AsyncClient`: the server's API for trainers and for the command line."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from rollyard.client.async_batch import AsyncBatch
from rollyard.client.attachment import Attachment, attach
from rollyard.client.evaluation_client import EvaluationClient
from rollyard.client.step_log import StepLog
from rollyard.client.usage_client import UsageClient
from rollyard.client.weights_client import WeightsClient
from rollyard.client.weights_push import WeightsPush
from rollyard.core.backoff import until_done
from rollyard.kinds.batch import BatchRequest
from rollyard.kinds.session import SessionOpened, SessionRequest
from rollyard.kinds.token import RotationResult
from rollyard.kinds.weights import Mode
from rollyard.trajectory.session import SessionRecord
from rollyard.wire.attach import Start


class AsyncClient(WeightsClient, EvaluationClient, UsageClient):
    """The whole API for people and trainers. Use an `AsyncClient` as an async context manager."""

    async def server_version(self) -> str:
        """Return the server's version. Raises Unavailable when no server answers."""
        return str((await self._http.json("GET", "/version"))["gitVersion"])

    async def rotate_tokens(self, overlap_seconds: float) -> RotationResult:
        """Make new tokens for all jobs and for this server's administrator. Earlier ones stay valid for the overlap."""
        body = {"overlap_seconds": overlap_seconds}
        answer = await self._http.json("POST", "/v1/tokens/rotation", body=body, repeat=False)
        return RotationResult.model_validate(answer)

    def weights(
        self,
        pool: str,
        *,
        folder: Path | str | None = None,
        namespace: str | None = None,
        mode: Mode = "Pause",
        keep: int = 2,
    ) -> WeightsPush:
        """Push a trainer's weights: `async with client.weights("policy") as w: await w.push(model)`."""
        return WeightsPush(self, pool, folder=folder, namespace=namespace, mode=mode, keep=keep)

    def batch(
        self,
        request: BatchRequest | str,
        namespace: str | None = None,
        *,
        after: int = 0,
        progress: bool = False,
        log: StepLog | None = None,
    ) -> AsyncBatch:
        """Iterate over the groups of a batch: `async for group in client.batch(request)`.

        `request`: the batch, which the first step of the iteration creates, or the id of an existing batch. `after`:
        delivery number of the last group that the caller already has. `progress`: show the batch's state on the
        terminal. `log`: gets the metrics of each training step (`rollyard.client.step_log`).
        """
        return AsyncBatch(self, request, namespace, after=after, progress=progress, log=log, warn=self._warn)

    def attach(
        self, id: str, start: Start, namespace: str | None = None
    ) -> contextlib.AbstractAsyncContextManager[Attachment]:
        """Attach to the sandbox of a running rollout: run a program in it, or copy files. Leaving the block ends the
        program. Raises ApiError."""
        return attach(self._http, id, namespace, start)

    # sessions of external agents

    async def open_session(
        self, request: SessionRequest, namespace: str | None = None, *, wait: float = 0.0
    ) -> SessionOpened:
        """Open a session; return its key and its URL for model calls. A request without an id gets an id here.

        `wait`: seconds to wait for an endpoint. A pool without an endpoint may need minutes; during this time the
        session counts as demand. Raises Invalid, TooManyRequests. Raises Conflict if the id belongs to a
        different session, and Unavailable if there is no endpoint.
        """
        body = request.model_dump(mode="json", exclude_unset=True) | {"id": request.id or f"s-{secrets.token_hex(8)}"}

        def call() -> Awaitable[Any]:
            return self._http.json("POST", "/v1/sessions", query=self._http.query(namespace), body=body)

        return SessionOpened.model_validate(await until_done(call, "waiting for a session", seconds=wait))

    async def session(self, id: str) -> SessionRecord:
        """Return the session's state, with the trajectory so far. Raises NotFound, Expired."""
        return SessionRecord.model_validate(await self._http.json("GET", f"/v1/sessions/{id}"))

    async def close_session(self, id: str) -> SessionRecord:
        """Close the session; return the trajectory. Later calls of the session are refused. Raises NotFound, Expired."""
        return SessionRecord.model_validate(await self._http.json("POST", f"/v1/sessions/{id}/close"))
