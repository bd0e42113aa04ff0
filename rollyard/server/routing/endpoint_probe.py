"""Probe of a model server: does it answer, does it serve the model, and which route returns token ids?

The name and version of a server do not prove which route works. So the probe requests one token, and the answer
decides.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from rollyard.core.errors import connection_failure_text
from rollyard.kinds.base import Reason
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
