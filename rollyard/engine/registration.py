"""The registration of one allocation's engine at the server."""

from __future__ import annotations

import aiohttp

from rollyard.client.server_link import ServerLink
from rollyard.core.backoff import until_done
from rollyard.core.errors import ApiError, Fenced, Incompatible
from rollyard.wire.base import Identity
from rollyard.wire.engine import EngineHeartbeat, EngineHello, EngineOrders, EngineWelcome


class Registration:
    def __init__(self, link: ServerLink, http: aiohttp.ClientSession, url: str) -> None:
        """`url`: address at which this process serves."""
        self._link = link
        self._http = http
        self.url = url
        self.identity: Identity = link.identity()

    async def register(self, csr: str | None = None) -> EngineWelcome:
        """Register; retry until the server accepts. `csr`: request for a certificate. Raises Fenced, Incompatible."""
        hello = EngineHello(identity=self.identity, url=self.url, csr=csr).model_dump_json()

        async def register() -> EngineWelcome:
            return EngineWelcome.from_wire(await self._link.post(self._http, "/v1/engine/register", hello))

        return await until_done(register, "registering", after=(ApiError,), but=(Fenced, Incompatible))

    async def report(self, beat: EngineHeartbeat) -> EngineOrders:
        """Send a heartbeat; return the server's orders. Raises ApiError."""
        answer = await self._link.post(self._http, "/v1/engine/heartbeat", beat.model_dump_json())
        return EngineOrders.from_wire(answer)
