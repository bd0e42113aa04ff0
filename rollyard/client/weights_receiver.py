"""An engine that waits for a trainer to move weights into it."""

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
    """namespace/allocation."""

    async def call(self, route: str, body: Mapping[str, Any] | bytes | None = None) -> Any:
        """Make one call of a transfer, such as `update_weights`, and return its JSON.

        The routes and bodies are vLLM's. The embedded engine has them too, and also accepts bytes of safetensors.
        Raises Conflict when the engine no longer waits, ApiError with the engine's message when it refuses.
        """
        path = f"{self.weights_path}/endpoints/{self.id.rpartition('/')[2]}/{route}"
        method = "GET" if route.startswith("get_") else "POST"
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        return await self.http.json(method, path, body=body, content_type=kind, repeat=False, seconds=CALL_SECONDS)
