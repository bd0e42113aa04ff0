"""Finds the dialect of an endpoint.

A server that is neither Rollyard's engine nor SGLang is probed. The result of a probe is used for ROUTE_TTL_SECONDS.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass

import aiohttp

from rollyard.tokens.endpoint_dialects import COMPLETIONS, GENERATE, SGLANG, Dialect
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.model_list import MALFORMED_LIST, listed_context

ROUTE_TTL_SECONDS = 600.0
PROBE_SECONDS = 10.0
MAX_ROUTES = 4096


@dataclass(frozen=True)
class Route:
    dialect: Dialect
    context: int | None
    """Length of the context in tokens, as the server reports it; None if it is unknown."""
    found_at: float


class Routes:
    """Routes of the endpoints that have been used."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._routes: OrderedDict[str, Route] = OrderedDict()

    async def of(self, endpoint: Endpoint) -> Route:
        """Return the route of an endpoint; never raises.

        If the probe fails, return a route with `/v1/completions`. If the server is down, the caller's
        own request fails.
        """
        if endpoint.ca:  # our own engine: its reverse proxy adds the weights version only to completions
            return Route(COMPLETIONS, endpoint.context, 0.0)
        if endpoint.dialect == "sglang":
            return Route(SGLANG, None, 0.0)
        route = self._routes.get(endpoint.url)
        if route is None or time.monotonic() - route.found_at > ROUTE_TTL_SECONDS:
            try:
                route = self._routes[endpoint.url] = await self._probe(endpoint)
            except (aiohttp.ClientError, OSError, ValueError, *MALFORMED_LIST):
                return Route(COMPLETIONS, None, 0.0)  # not stored, so the next request probes again
            while len(self._routes) > MAX_ROUTES:
                self._routes.popitem(last=False)
        return route

    def known_context(self, endpoint: Endpoint) -> int | None:
        """Return the length of an endpoint's context, if it is known without a question to the endpoint."""
        route = self._routes.get(endpoint.url)
        return endpoint.context if endpoint.ca or route is None else route.context

    async def _probe(self, endpoint: Endpoint) -> Route:
        headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
        base, context = endpoint.url.rstrip("/"), None
        async with asyncio.timeout(PROBE_SECONDS):
            url = base + GENERATE.path
            async with self._http.post(url, json={}, headers=headers, allow_redirects=False) as answer:
                served = answer.status in (
                    400,
                    422,
                )  # the path exists, and the server refuses the empty body
            if served:
                context = await self._context(base, endpoint.model, headers)
        # This path does not stop at the end of the context. So it is used only if the length of the context is known.
        return Route(GENERATE if served and context else COMPLETIONS, context, time.monotonic())

    async def _context(self, base: str, model: str, headers: dict[str, str]) -> int | None:
        async with self._http.get(f"{base}/v1/models", headers=headers, allow_redirects=False) as answer:
            return listed_context(await answer.json(), model)
