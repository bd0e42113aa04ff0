"""Requests in flight at model servers.

A request that gets no new token ids can be ended. Another server then continues from the token ids received so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress

QUIET_SECONDS = 2.0
"""Seconds without new token ids after which a request is quiet.

A server that other processes report as down may still answer this process. So a request that still gets token ids is
not ended.
"""


class InFlightRequest:
    """One request in flight. Call the object with the tokens of each chunk."""

    def __init__(self, endpoint: str, on_progress: OnProgress | None) -> None:
        self.endpoint = endpoint
        self.limit = asyncio.timeout(None)
        self._on_progress = on_progress
        self._heard_at = asyncio.get_running_loop().time()

    def __call__(self, chunk: Sampled) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if self._on_progress is not None:
            self._on_progress(chunk)

    @property
    def is_quiet(self) -> bool:
        return asyncio.get_running_loop().time() - self._heard_at >= QUIET_SECONDS


class InFlightRequests:
    """All requests in flight of one `FailoverPolicy`."""

    def __init__(self) -> None:
        self._requests: set[InFlightRequest] = set()

    @asynccontextmanager
    async def during(self, request: InFlightRequest) -> AsyncIterator[None]:
        """Register a request during a `with` block. Raises TimeoutError if `end_quiet` ends the request."""
        self._requests.add(request)
        try:
            async with request.limit:
                yield
        finally:
            self._requests.discard(request)

    def endpoint_ids(self) -> set[str]:
        """Return the ids of the endpoints that have requests in flight."""
        return {request.endpoint for request in self._requests}

    def end_quiet(self, endpoints: Collection[str]) -> int:
        """End all quiet requests at these endpoints. Return the number of ended requests."""
        ended = [r for r in self._requests if r.endpoint in endpoints and r.is_quiet and not r.limit.expired()]
        for request in ended:
            request.limit.reschedule(asyncio.get_running_loop().time())
        return len(ended)
