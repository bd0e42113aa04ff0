"""One look at a model server: is it there, does it serve the model, and by which route does it speak token ids?

Nothing is concluded from a name or a version: the server is asked for one token, and what comes back decides.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from rollyard.core.errors import failure_text
from rollyard.wire.endpoint import Endpoint

PROBE_SECONDS = 10.0
"""For one answer: one token, from a server that may have a queue."""
PROMPT = [1]
"""Any token will do; every vocabulary has this one."""
MAX_WORDS = 200
Dialect = Literal["openai", "sglang"]


@dataclass(frozen=True, slots=True)
class Finding:
    why: str = ""
    """What is wrong with it; empty when it did what was asked."""
    dialect: Dialect = "openai"


class Probe:
    """Asks endpoints; `trust` is for those whose certificate is of our own CA."""

    def __init__(self, http: aiohttp.ClientSession, trust: ssl.SSLContext) -> None:
        self._http = http
        self._trust = trust

    async def token(self, endpoint: Endpoint) -> Finding:
        """Let it sample one token, by the route that is known, or by whichever answers with token ids."""
        try:
            status, body = await self._post(endpoint, "/v1/completions", _completion(endpoint.model))
            if status == 200 and _completion_ids(body):
                return Finding()
            first = f"/v1/completions answers {_words(status, body, _completion_ids(body))}"
            status, body = await self._post(endpoint, "/generate", _GENERATE)
            if status == 200 and _generate_ids(body):
                return Finding(dialect="sglang")
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            return Finding(f"Unreachable: {_said(error)}")
        second = f"/generate {_words(status, body, _generate_ids(body))}"
        return Finding(f"NoTokenIds: {first}, {second}; it must be vLLM 0.10.2 or later, or SGLang")

    async def models(self, endpoint: Endpoint) -> Finding:
        """Whether it answers and lists the model; costs it nothing."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                url = f"{endpoint.url.rstrip('/')}/v1/models"
                async with self._http.get(url, headers=_headers(endpoint), ssl=self._ssl(endpoint)) as answer:
                    answer.raise_for_status()
                    served = [m["id"] for m in (await answer.json())["data"]]
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            return Finding(f"Unreachable: {_said(error)}")
        if endpoint.model in served:
            return Finding(dialect=endpoint.dialect)
        return Finding(f"ModelMissing: it serves {', '.join(served) or 'nothing'}, not {endpoint.model}")

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


def _completion(model: str) -> dict[str, Any]:
    return {"model": model, "prompt": PROMPT, "max_tokens": 1, "return_token_ids": True, "logprobs": 0}


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


def _words(status: int, body: Any, ids: bool) -> str:
    if status == 200:
        return "without token ids"
    return f"{status} {body if isinstance(body, str) else ''}".strip()[:MAX_WORDS]


def _said(error: BaseException) -> str:
    return failure_text(error)[:MAX_WORDS]
