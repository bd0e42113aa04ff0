"""Routes that NeMo Gym calls on an agent server."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from aiohttp import web

from rollyard.bridges.listener import answer, json_object
from rollyard.bridges.nemo_gym.handed_out import HandedOut
from rollyard.bridges.nemo_gym.rows import Row, aggregate, failure_of, failure_of_error, request_of, response_of
from rollyard.client import AsyncClient
from rollyard.core.errors import ApiError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NemoGymBridge:
    client: AsyncClient
    handed_out: HandedOut
    pool: str
    """RolloutPool of rows that name none."""
    namespace: str | None = None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._root),
            web.post("/run", self._run),
            web.post("/aggregate_metrics", self._aggregate),
        ]

    async def _root(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "rollyard", "pool": self.pool})

    async def _run(self, request: web.Request) -> web.StreamResponse:
        """Run one row. The status is always 200: after any other status NeMo Gym ends the whole collection."""
        row = Row({})
        try:
            row = Row(await json_object(request))
            return await self._result(request, row)
        except ApiError as error:
            return await answer(request, failure_of_error(row, error))
        except OSError:  # the caller is gone
            raise
        except Exception as error:
            log.exception("a row failed in the bridge")
            told = failure_of(row, kind="BridgeError", message=repr(error), terminal=False)
            return await answer(request, told)

    async def _result(self, request: web.Request, row: Row) -> web.StreamResponse:
        times = await self.handed_out.times(row.key)
        trajectory = await self.client.run(request_of(row, self.pool, times), self.namespace)
        made = await asyncio.to_thread(response_of, row, trajectory, time.time())
        # Stored before the first byte goes out. After a crash in between, the row gets a new rollout, never an old result.
        return await answer(request, made, lambda: self.handed_out.set_times(row.key, times + 1))

    async def _aggregate(self, request: web.Request) -> web.StreamResponse:
        try:
            rows = (await json_object(request)).get("verify_responses")
        except ApiError:
            rows = None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return web.json_response({"detail": "`verify_responses` must be a list of objects"}, status=422)
        return await answer(request, aggregate(rows))
