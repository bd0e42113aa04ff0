"""Requests in flight at model servers. A quiet request can be ended with its ids so far, to continue at another server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from rollyard.tokens.streamed_response import OnProgress

QUIET_SECONDS = 2.0
"""A request stays for so many seconds after its last ids: a server that others cannot reach may still answer here."""


class InFlightRequest:
    """One request in flight. It is called with the ids of each chunk."""

    def __init__(self, endpoint: str, on_progress: OnProgress | None) -> None:
        self.endpoint = endpoint
        self.limit = asyncio.timeout(None)
        self._on_progress = on_progress
        self._heard_at = asyncio.get_running_loop().time()

    def __call__(self, ids: Sequence[int]) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if self._on_progress is not None:
            self._on_progress(ids)

    @property
    def is_quiet(self) -> bool:
        return asyncio.get_running_loop().time() - self._heard_at >= QUIET_SECONDS


class InFlightRequests:
    """All requests of one sampler."""

    def __init__(self) -> None:
        self._requests: set[InFlightRequest] = set()

    @asynccontextmanager
    async def during(self, request: InFlightRequest) -> AsyncIterator[None]:
        """Register the request for the block. Raises TimeoutError if the request is ended by `end_quiet`."""
        self._requests.add(request)
        try:
            async with request.limit:
                yield
        finally:
            self._requests.discard(request)

    def endpoint_ids(self) -> set[str]:
        """Ids of the endpoints with requests in flight."""
        return {request.endpoint for request in self._requests}

    def end_quiet(self, endpoints: Collection[str]) -> int:
        """End the quiet requests at these endpoints; return their number."""
        ended = [r for r in self._requests if r.endpoint in endpoints and r.is_quiet and not r.limit.expired()]
        for request in ended:
            request.limit.reschedule(asyncio.get_running_loop().time())
        return len(ended)
