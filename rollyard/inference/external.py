"""Model servers that others run: probed here, since they send no heartbeat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from rollyard.inference.endpoints import Endpoints, PoolKey
from rollyard.kinds.pools import ExternalEndpoint, InferencePool
from rollyard.kinds.wire import Endpoint

log = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
PROBE_TIMEOUT_SECONDS = 4.0


class ExternalProber:
    """Asks each external endpoint for its model list, again and again."""

    def __init__(self, endpoints: Endpoints, pools: Callable[[], Awaitable[list[InferencePool]]]) -> None:
        self._endpoints = endpoints
        self._pools = pools
        self._seen: set[PoolKey] = set()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                await self._round(http)
                await asyncio.sleep(PROBE_SECONDS)

    async def _round(self, http: aiohttp.ClientSession) -> None:
        pools = [p for p in await self._pools() if p.spec.engine.external is not None]
        keys = {(p.metadata.namespace, p.metadata.name): p for p in pools}
        for gone in self._seen - keys.keys():
            self._endpoints.forget_external(gone, set())
        self._seen = set(keys)
        async with asyncio.TaskGroup() as tasks:
            for key, pool in keys.items():
                assert pool.spec.engine.external is not None
                listed = pool.spec.engine.external.endpoints
                self._endpoints.forget_external(key, {_id(key, e) for e in listed})
                for external in listed:
                    tasks.create_task(self._probe(http, key, pool, external))

    async def _probe(
        self, http: aiohttp.ClientSession, key: PoolKey, pool: InferencePool, external: ExternalEndpoint
    ) -> None:
        model = pool.spec.model
        token, ready, reason = None, False, ""
        base = external.url.rstrip("/").removesuffix("/v1")
        try:
            if external.token_file is not None:
                token = (await asyncio.to_thread(Path(external.token_file).read_text)).strip()
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with http.get(f"{base}/v1/models", headers=headers) as answer:
                answer.raise_for_status()
                served = [m["id"] for m in (await answer.json())["data"]]
            ready = model.served_name in served
            reason = "" if ready else f"ModelMissing: it serves {', '.join(served)}, not {model.served_name}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            reason = f"Unreachable: {type(error).__name__}: {error}"
        endpoint = Endpoint(
            id=_id(key, external),
            url=base,
            token=token,
            model=model.served_name,
            weights_version="external",
            tokenizer=model.tokenizer or model.path,
            ca=False,
            logprobs=external.logprobs_mode,
        )
        self._endpoints.probed(key, endpoint, ready=ready, reason=reason)


def _id(key: PoolKey, external: ExternalEndpoint) -> str:
    return f"{key[0]}/{key[1]}/{external.url}"
