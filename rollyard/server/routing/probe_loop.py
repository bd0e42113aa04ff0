"""Loops that send probes: to external endpoints at intervals, and to endpoints that are suspected or whose ejection ends.

Probe of a model server: does it answer, does it serve the model, and which route returns token ids?

The name and version of a server do not prove which route works. So the probe requests one token, and the answer
decides.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp

from rollyard.core.aio import Waker
from rollyard.core.errors import connection_failure_text
from rollyard.kinds.base import Reason
from rollyard.kinds.engine_spec import ExternalEndpoint
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.wire.endpoint import Endpoint

PROBE_SECONDS = 10.0
"""Time limit for one answer. The server may have a queue before it samples the one token."""
PROMPT = [1]
"""Prompt of one token id, which every vocabulary has."""
MAX_ERROR_CHARS = 200
DialectName = Literal["openai", "sglang"]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    why: Reason | None = None
    """Reason of the failure; None on success."""
    dialect: DialectName = "openai"


class EndpointProbe:
    """Probes endpoints. `trust` is used for endpoints with a certificate from our own CA."""

    def __init__(self, http: aiohttp.ClientSession, trust: ssl.SSLContext) -> None:
        self._http = http
        self._trust = trust

    async def sample_one_token(self, endpoint: Endpoint) -> ProbeResult:
        """Sample one token through /v1/completions. If the answer has no token ids, try /generate. After a status of 500
        or more the probe has failed, and /generate is not tried."""
        try:
            status, body = await self._post(
                endpoint,
                "/v1/completions",
                {"model": endpoint.model, "prompt": PROMPT, "max_tokens": 1, "return_token_ids": True, "logprobs": 0},
            )
            if status == 200 and _completion_ids(body):
                return ProbeResult()
            first = f"/v1/completions answers {_answer_problem(status, body, _completion_ids(body))}"
            status, body = await self._post(endpoint, "/generate", _GENERATE)
            if status == 200 and _generate_ids(body):
                return ProbeResult(dialect="sglang")
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            return ProbeResult(Reason("Unreachable", _error_text(error)))
        second = f"/generate {_answer_problem(status, body, _generate_ids(body))}"
        return ProbeResult(Reason("NoTokenIds", f"{first}, {second}; it must be vLLM 0.10.2 or later, or SGLang"))

    async def check_models(self, endpoint: Endpoint) -> ProbeResult:
        """Check that the server answers and lists the model. The server samples nothing for this check."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                url = f"{endpoint.url.rstrip('/')}/v1/models"
                async with self._http.get(url, headers=_headers(endpoint), ssl=self._ssl(endpoint)) as answer:
                    answer.raise_for_status()
                    served = [m["id"] for m in (await answer.json())["data"]]
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            return ProbeResult(Reason("Unreachable", _error_text(error)))
        if endpoint.model in served:
            return ProbeResult(dialect=endpoint.dialect)
        why = f"it serves {', '.join(served) or 'nothing'}, not {endpoint.model}"
        return ProbeResult(Reason("ModelMissing", why))

    async def _post(self, endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        async with asyncio.timeout(PROBE_SECONDS):
            url = endpoint.url.rstrip("/") + path
            async with self._http.post(
                url, json=body, headers=_headers(endpoint), ssl=self._ssl(endpoint), allow_redirects=False
            ) as answer:
                if answer.status >= 500:
                    answer.raise_for_status()
                text = await answer.text()
                return answer.status, (await answer.json(content_type=None)) if text[:1] == "{" else text

    def _ssl(self, endpoint: Endpoint) -> ssl.SSLContext | bool:
        return self._trust if endpoint.ca else True


def _headers(endpoint: Endpoint) -> dict[str, str]:
    return {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}


_GENERATE: Mapping[str, Any] = {
    "input_ids": PROMPT,
    "sampling_params": {"max_new_tokens": 1},
    "return_logprob": True,
}


def _completion_ids(body: Any) -> bool:
    match body:
        case {"choices": [{"token_ids": [int(), *_]}, *_]}:
            return True
    return False


def _generate_ids(body: Any) -> bool:
    match body:
        case {"meta_info": {"output_token_logprobs": [[float() | int(), int(), *_], *_]}}:
            return True
    return False


def _answer_problem(status: int, body: Any, ids: bool) -> str:
    if status == 200:
        return "without token ids"
    return f"{status} {body if isinstance(body, str) else ''}".strip()[:MAX_ERROR_CHARS]


def _error_text(error: BaseException) -> str:
    return connection_failure_text(error)[:MAX_ERROR_CHARS]


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
