"""Routes of a ProRL Agent server."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pydantic
from aiohttp import web

from rollyard.bridges.listener import answer, json_object
from rollyard.bridges.prorl_agent.instances import request_of, result_of_trajectory, rollout_of
from rollyard.client import AsyncClient
from rollyard.core.errors import BadRequest, Conflict, Invalid, NotFound, Unavailable
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.engine_spec import ExternalEndpoint
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.schema.validation import problems_of


class ProrlAgentBridge:
    """Serves instances with one RolloutPool. It accepts instances until `POST /stop`, and after the next `/start`."""

    def __init__(
        self, client: AsyncClient, namespace: str, pool: str, kinds: Mapping[str, str], inference_pool: str | None
    ) -> None:
        """`kinds`: task kinds by `data_source`. `inference_pool`: pool of external servers that `/add_llm_server` and
        `/clear_llm_server` change; None if they are refused."""
        self._client, self._namespace, self._pool, self._kinds = client, namespace, pool, kinds
        self._inference = (
            ObjectKey(kind="InferencePool", namespace=namespace, name=inference_pool) if inference_pool else None
        )
        self._running = True
        self._waits = Counter[str]()
        """Number of calls that wait for a job."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/start", self._start),
            web.post("/stop", self._stop),
            web.get("/status", self._status),
            web.post("/process", self._process),
            web.post("/cancel", self._cancel),
            web.post("/add_llm_server", self._add_llm_server),
            web.post("/clear_llm_server", self._clear_llm_server),
        ]

    async def _start(self, request: web.Request) -> web.Response:
        self._running = True
        return web.json_response({"status": "Server started successfully"})

    async def _stop(self, request: web.Request) -> web.Response:
        """Accept no more instances, and cancel those that are waited for."""
        self._running = False
        for job in list(self._waits):
            with contextlib.suppress(NotFound):  # its submit has not arrived
                await self._client.cancel(rollout_of(job), self._namespace)
        return web.json_response({"status": "Server stopped successfully"})

    async def _status(self, request: web.Request) -> web.Response:
        if not self._running:
            raise Unavailable(NOT_RUNNING)
        counts = await self._client.counts(self._namespace, pool=self._pool)
        return web.json_response({"status": "running", "pending_jobs": len(self._waits), "pool": self._pool, **counts})

    async def _process(self, request: web.Request) -> web.StreamResponse:
        """Run an instance, or attach to the job if its id is known, and answer with the result."""
        if not self._running:
            raise Unavailable(NOT_RUNNING)
        job, waiting = "", False
        try:
            body = await json_object(request)
            instance, params = body.get("instance"), body.get("sampling_params") or {}
            if not isinstance(instance, dict) or not isinstance(params, dict):
                raise BadRequest("`instance` and `sampling_params` must be JSON objects")
            job = _job_of(body) or secrets.token_hex(16)
            wanted = request_of(instance, params, job, self._pool, self._kinds)
            self._waits[job] += 1
            waiting = True
            trajectory = await self._client.run(wanted, self._namespace)
        finally:
            if waiting:
                self._waits.subtract([job])
                self._waits += Counter()  # without those that nobody waits for
        return await answer(request, await asyncio.to_thread(result_of_trajectory, instance, trajectory))

    async def _cancel(self, request: web.Request) -> web.Response:
        job = _job_of(await json_object(request))
        if job not in self._waits:
            raise NotFound(f"nobody waits for the job {job!r}")
        await self._client.cancel(rollout_of(job), self._namespace)
        return web.json_response({"status": f"Cancel requested for job {job}"})

    async def _add_llm_server(self, request: web.Request) -> web.Response:
        address = (await json_object(request)).get("address")
        await self._client.add_endpoint(self._external_servers(), _endpoint(address))
        return web.json_response({"status": f"Added LLM server address: {address}"})

    async def _clear_llm_server(self, request: web.Request) -> web.Response:
        key = self._external_servers()
        pool = await self._client.get(key)
        assert isinstance(pool, InferencePool)
        external = pool.spec.engine.external
        for endpoint in external.endpoints if external is not None else []:
            await self._client.remove_endpoint(key, endpoint.url)
        return web.json_response({"status": "Cleared all LLM server addresses"})

    def _external_servers(self) -> ObjectKey:
        """Return the pool of external servers. Raises Conflict without one."""
        if self._inference is None:
            raise Conflict(
                "the model servers of this pool are Rollyard's own; leave this call out, or start the bridge with "
                "--inference-pool and the name of an InferencePool of external servers"
            )
        return self._inference


NOT_RUNNING = "Server is not running. Please start the server first."


def _job_of(body: Mapping[str, Any]) -> str:
    """Return the job's id; "" without one. Raises BadRequest."""
    job = body.get("job_id")
    if job is not None and not isinstance(job, (str, int)):
        raise BadRequest("`job_id` must be a text or a whole number")
    return "" if job is None else str(job)


def _endpoint(address: Any) -> ExternalEndpoint:
    if not isinstance(address, str) or not address.startswith(("http://", "https://")):
        raise BadRequest("`address` must be a URL, such as http://node7:8000/v1")
    try:
        return ExternalEndpoint(url=address)
    except pydantic.ValidationError as error:
        raise Invalid(f"`address`: {'; '.join(p.message for p in problems_of(ExternalEndpoint, error))}") from None
