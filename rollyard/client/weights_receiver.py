"""Calls of a trainer to an engine that waits for weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollyard.client.server_connection import ServerConnection

CALL_SECONDS = 600.0


@dataclass(frozen=True)
class WeightsReceiver:
    http: ServerConnection
    weights_path: str
    """Path of the pool's weights in the API."""
    id: str
    """The engine's allocation, as `namespace/name`."""

    async def call(self, route: str, body: Mapping[str, Any] | bytes | None = None) -> Any:
        """Make one call of a transfer, such as `update_weights`, and return the JSON answer.

        The routes and bodies are those of vLLM. The embedded engine has the same routes, and also accepts bytes of
        safetensors. Raises Conflict if the engine no longer waits, and ApiError with the engine's message if the
        engine refuses the call.
        """
        path = f"{self.weights_path}/endpoints/{self.id.rpartition('/')[2]}/{route}"
        method = "GET" if route.startswith("get_") else "POST"
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        return await self.http.json(method, path, body=body, content_type=kind, repeat=False, seconds=CALL_SECONDS)
