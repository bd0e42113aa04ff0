"""Loops that send probes: to external endpoints at intervals, and to endpoints that are suspected or whose ejection ends."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from rollyard.core.aio import Waker
from rollyard.kinds.engine_spec import ExternalEndpoint
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.endpoint_probe import EndpointProbe, ProbeResult
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
EXTERNAL_SECONDS = 5.0
"""Seconds between two probes of an external server, which sends no heartbeat."""
MAX_CONCURRENT = 32


class EndpointProber:
    """Sends the probes. `pools` returns all InferencePools."""

    def __init__(
        self, endpoints: EndpointRegistry, pools: Callable[[], Awaitable[list[InferencePool]]], trust: ssl.SSLContext
    ) -> None:
        self._endpoints = endpoints
        self._pools = pools
        self._trust = trust
        self.suspected = Waker()
        """Wakes the loop for suspected endpoints, because a probe is due."""
        self.relisted = Waker()
        """Wakes the loop for external endpoints, because the list in a pool's spec has changed."""
        self._seen: set[PoolKey] = set()
        self._busy: set[str] = set()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def run(self) -> None:
        """Probe for ever."""
        timeout = aiohttp.ClientTimeout(total=None)  # each probe has its own limit
        connector = aiohttp.TCPConnector(force_close=True)  # so that each probe also tests the connection
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as http,
            asyncio.TaskGroup() as tasks,
        ):
            probe = EndpointProbe(http, self._trust)
            tasks.create_task(self._probe_externals(tasks, probe))
            while True:
                for state in self._endpoints.suspected_endpoints():
                    self._start_probe(tasks, probe, state.endpoint, whole=True)
                await self.suspected.pause(POLL_SECONDS)

    async def _probe_externals(self, tasks: asyncio.TaskGroup, probe: EndpointProbe) -> None:
        while True:
            await self._sync_registry()
            for key in self._seen:
                for state in self._endpoints.of_pool(key):
                    # An ejected endpoint is probed only at the end of its ejection, by the loop in `run`.
                    if not state.uid and not state.trust.ejected and not state.drain:
                        self._start_probe(tasks, probe, state.endpoint, whole=not state.ready)
            await self.relisted.pause(EXTERNAL_SECONDS)

    async def _sync_registry(self) -> None:
        """Add to the registry the external endpoints of the pools' specs, and remove those that are no longer in a
        spec."""
        found = {p.pool_key: p for p in await self._pools()}
        pools = {key: p for key, p in found.items() if p.spec.engine.external and not p.metadata.deletion_timestamp}
        for gone in self._seen - pools.keys():
            self._endpoints.remove_unlisted(gone, set())
        self._seen = {key for key in self._seen if self._endpoints.of_pool(key)} | set(pools)
        for key, pool in pools.items():
            assert pool.spec.engine.external is not None
            listed = pool.spec.engine.external.endpoints
            self._endpoints.remove_unlisted(key, {external_id(key, e) for e in listed})
            for external in listed:
                await self._register_external(key, pool, external)

    async def _register_external(self, key: PoolKey, pool: InferencePool, external: ExternalEndpoint) -> None:
        id, model = external_id(key, external), pool.spec.model
        token = None
        if external.token_file is not None:
            try:
                token = (await asyncio.to_thread(Path(external.token_file).read_text)).strip()
            except (OSError, ValueError) as error:
                log.warning("the token file of endpoint %s cannot be read: %s", id, error)
        known = self._endpoints.get(id)
        endpoint = Endpoint(
            id=id,
            url=external.base,
            token=token,
            model=model.served_name,
            weights_version="external",
            tokenizer=model.tokenizer or model.path,
            ca=False,
            logprobs=external.logprobs_mode,
            dialect=known.endpoint.dialect if known is not None else "openai",
        )
        self._endpoints.add_external(key, endpoint, external.capacity)

    def _start_probe(self, tasks: asyncio.TaskGroup, probe: EndpointProbe, endpoint: Endpoint, *, whole: bool) -> None:
        """Start a probe, unless a probe of this endpoint is still running. `whole`: the probe also samples a token."""
        if endpoint.id not in self._busy:
            self._busy.add(endpoint.id)
            tasks.create_task(self._probe(probe, endpoint, whole))

    async def _probe(self, probe: EndpointProbe, endpoint: Endpoint, whole: bool) -> None:
        try:
            async with self._slots:
                # Our own engines need no `check_models`: their heartbeats report what they serve.
                found = ProbeResult() if endpoint.ca else await probe.check_models(endpoint)
                if whole and found.why is None:
                    found = await probe.sample_one_token(endpoint)
        finally:
            self._busy.discard(endpoint.id)
        self._endpoints.probed(endpoint.id, found.why, found.dialect)


def external_id(pool: PoolKey, endpoint: ExternalEndpoint) -> str:
    return f"{pool.namespace}/{pool.name}/{endpoint.base}"
