"""Looks after endpoints: those that others run, again and again, and any that is under suspicion or may come back."""

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
from rollyard.server.routing.endpoint_probe import Finding, Probe
from rollyard.server.routing.endpoint_registry import Endpoints
from rollyard.server.routing.endpoint_state import PoolKey
from rollyard.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
EXTERNAL_SECONDS = 5.0
"""Between two looks at a server that sends no heartbeat."""
AT_ONCE = 32


class Prober:
    """The one that asks. `pools` answers all InferencePools."""

    def __init__(
        self, endpoints: Endpoints, pools: Callable[[], Awaitable[list[InferencePool]]], trust: ssl.SSLContext
    ) -> None:
        self._endpoints = endpoints
        self._pools = pools
        self._trust = trust
        self._suspected = Waker()
        self._relisted = Waker()
        self._seen: set[PoolKey] = set()
        self._busy: set[str] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)

    def wake(self) -> None:
        """A probe is due."""
        self._suspected.wake()

    def relist(self) -> None:
        """The list of some pool's external endpoints has changed."""
        self._relisted.wake()

    async def run(self) -> None:
        """For ever."""
        timeout = aiohttp.ClientTimeout(total=None)  # each probe has its own
        connector = aiohttp.TCPConnector(force_close=True)  # what is probed is also whether one can connect
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as http,
            asyncio.TaskGroup() as tasks,
        ):
            probe = Probe(http, self._trust)
            tasks.create_task(self._look_after_externals(tasks, probe))
            while True:
                for state in self._endpoints.suspects():
                    self._begin(tasks, probe, state.endpoint, whole=True)
                await self._suspected.pause(LOOK_SECONDS)

    async def _look_after_externals(self, tasks: asyncio.TaskGroup, probe: Probe) -> None:
        while True:
            await self._list()
            for key in self._seen:
                for state in self._endpoints.of_pool(key):
                    # While it is ejected the half-open probe alone goes there.
                    if not state.uid and not state.trust.ejected and not state.drain:
                        self._begin(tasks, probe, state.endpoint, whole=not state.ready)
            await self._relisted.pause(EXTERNAL_SECONDS)

    async def _list(self) -> None:
        """Bring the registry in line with what the pools name."""
        found = {(p.metadata.namespace, p.metadata.name): p for p in await self._pools()}
        pools = {key: p for key, p in found.items() if p.spec.engine.external and not p.metadata.deletion_timestamp}
        for gone in self._seen - pools.keys():
            self._endpoints.unlisted(gone, set())
        self._seen = {key for key in self._seen if self._endpoints.of_pool(key)} | set(pools)
        for key, pool in pools.items():
            assert pool.spec.engine.external is not None
            listed = pool.spec.engine.external.endpoints
            self._endpoints.unlisted(key, {external_id(key, e) for e in listed})
            for external in listed:
                await self._one(key, pool, external)

    async def _one(self, key: PoolKey, pool: InferencePool, external: ExternalEndpoint) -> None:
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
        self._endpoints.listed(key, endpoint, external.capacity)

    def _begin(self, tasks: asyncio.TaskGroup, probe: Probe, endpoint: Endpoint, *, whole: bool) -> None:
        """Not twice at once: a slow one is still being waited for."""
        if endpoint.id not in self._busy:
            self._busy.add(endpoint.id)
            tasks.create_task(self._probe(probe, endpoint, whole))

    async def _probe(self, probe: Probe, endpoint: Endpoint, whole: bool) -> None:
        try:
            async with self._slots:
                # Ours say by heartbeat what they serve.
                found = Finding() if endpoint.ca else await probe.models(endpoint)
                if whole and not found.why:
                    found = await probe.token(endpoint)
        finally:
            self._busy.discard(endpoint.id)
        self._endpoints.probed(endpoint.id, found.why, found.dialect)


def external_id(pool: PoolKey, endpoint: ExternalEndpoint) -> str:
    return f"{pool[0]}/{pool[1]}/{endpoint.base}"
