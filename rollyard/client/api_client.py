"""`ApiClient`: the connection of a client to the server's API. The clients of single resources inherit from it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

from rollyard.client.kubeconfig import Context, load_context
from rollyard.client.server_connection import RETRY_SECONDS, ServerConnection

log = logging.getLogger(__name__)


class ApiClient:
    """An async context manager that closes the connection."""

    def __init__(
        self,
        context: Context | None = None,
        *,
        kubeconfig: Path | str | None = None,
        warn: Callable[[str], None] = log.warning,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Raises BadRequest if the kubeconfig is missing or invalid.

        `warn`: function that gets the server's warnings (for example that a pool could not be checked), and a text when
        a call waits for the server. `retry_seconds`: time for which a call waits for an unreachable server.
        """
        self.context = context or load_context(kubeconfig)
        self._warn = warn
        self._http = ServerConnection(self.context, warn=warn, retry_seconds=retry_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
