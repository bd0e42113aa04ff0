"""Which dialect an endpoint is asked in: found out once, and again after a while, for others' servers change."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass

import aiohttp

from rollyard.tokens.endpoint_dialects import COMPLETIONS, GENERATE, SGLANG, Dialect
from rollyard.wire.endpoint import Endpoint

ROUTE_TTL_SECONDS = 600.0
PROBE_SECONDS = 10.0
MAX_ROUTES = 4096


@dataclass(frozen=True)
class Route:
    dialect: Dialect
    context: int | None
    """Tokens that fit, as the server says; asked for where the dialect needs it."""
    found_at: float


class Routes:
    """The ways of the endpoints met so far."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._ways: OrderedDict[str, Route] = OrderedDict()

    async def of(self, endpoint: Endpoint) -> Route:
        """Never raises: a server that does not answer is asked for completions, and fails at that."""
        if endpoint.ca:  # ours: its door says the weights' versions on completions alone
            return Route(COMPLETIONS, None, 0.0)
        if endpoint.dialect == "sglang":
            return Route(SGLANG, None, 0.0)
        way = self._ways.get(endpoint.url)
        if way is None or time.monotonic() - way.found_at > ROUTE_TTL_SECONDS:
            try:
                way = self._ways[endpoint.url] = await self._probe(endpoint)
            except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError):
                return Route(COMPLETIONS, None, 0.0)  # asked again next time
            while len(self._ways) > MAX_ROUTES:
                self._ways.popitem(last=False)
        return way

    async def _probe(self, endpoint: Endpoint) -> Route:
        headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
        base, context = endpoint.url.rstrip("/"), None
        async with asyncio.timeout(PROBE_SECONDS):
            url = base + GENERATE.path
            async with self._http.post(url, json={}, headers=headers, allow_redirects=False) as answer:
                served = answer.status in (400, 422)  # it knows the path and misses what an empty body lacks
            if served:
                context = await self._context(base, endpoint.model, headers)
        # generate does not end where the context does: without knowing where, completions are safer
        return Route(GENERATE if served and context else COMPLETIONS, context, time.monotonic())

    async def _context(self, base: str, model: str, headers: dict[str, str]) -> int | None:
        async with self._http.get(f"{base}/v1/models", headers=headers, allow_redirects=False) as answer:
            models = (await answer.json())["data"]
        lengths = [m.get("max_model_len") for m in models if m["id"] == model]
        return lengths[0] if lengths and isinstance(lengths[0], int) else None
