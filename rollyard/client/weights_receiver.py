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
    """Of its pool."""
    id: str
    """namespace/allocation."""

    async def call(self, route: str, body: Mapping[str, Any] | bytes | None = None) -> Any:
        """One call of a transfer, such as `update_weights`: vLLM's routes with its bodies; of the embedded engine too, which
        takes bytes of safetensors. Answers its JSON.

        Raises Conflict where the engine does not wait any more, ApiError with the engine's words for what it refuses.
        """
        path = f"{self.weights_path}/endpoints/{self.id.rpartition('/')[2]}/{route}"
        method = "GET" if route.startswith("get_") else "POST"
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        return await self.http.json(method, path, body=body, content_type=kind, repeat=False, seconds=CALL_SECONDS)
