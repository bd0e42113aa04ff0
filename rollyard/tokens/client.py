"""Token ids in, token ids out: a client of `/v1/completions` in vLLM's shape that loses nothing it was sent.

Answers are streamed, so that the ids received before a failure are kept and another endpoint goes on from there.
No message of an error here holds a token or a header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import aiohttp

from rollyard.errors import ContextExceeded, EndpointRefused
from rollyard.kinds.rollout import Sampling
from rollyard.kinds.wire import Endpoint
from rollyard.tokens import sglang
from rollyard.tokens.events import events
from rollyard.tokens.sampled import Sampled, StreamLost

Checkout = Callable[[str | None], Awaitable[Endpoint]]
"""Given the id of the endpoint that failed, or None at first, says which to use. May raise EndpointError."""
OnProgress = Callable[[Sequence[int]], None]
"""Called with the ids of each chunk as it arrives."""

GOLDEN = 0x9E3779B97F4A7C15
MAX_MESSAGE = 300
MAX_ERROR_BYTES = 1 << 16
TOO_LONG = "maximum context length"
"""How vLLM and the embedded engine begin to say that a prompt does not fit."""


@dataclass(frozen=True)
class Patience:
    """Longest waits, in seconds."""

    connect: float = 10.0
    first_token: float = 300.0
    """Queueing and the prompt included."""
    next_token: float = 60.0

    @classmethod
    def of(cls, endpoint: Endpoint) -> Patience:
        """As its pool says."""
        said = endpoint.patience
        return cls(said.connect_seconds, said.first_token_seconds, said.idle_seconds)


def seed_after(seed: int, drawn: int) -> int:
    """The seed with which a request that has had `drawn` tokens goes on elsewhere.

    The same seed would repeat the draws of the first tokens. The stride is that of splitmix64, with which the embedded
    engine continues exactly as if there had been no break; for another engine it is simply a different seed.
    """
    moved = (seed + drawn * GOLDEN) % 2**64
    return moved - 2**64 if moved >= 2**63 else moved


class TokenClient:
    """Calls model servers. `http` brings the trust in their certificates; it is the caller's to close.

    `patience`: with all endpoints alike; each one's own where it is left out.
    """

    def __init__(self, http: aiohttp.ClientSession, patience: Patience | None = None) -> None:
        self._http = http
        self._patience = patience

    async def complete(
        self,
        endpoint: Endpoint,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None = None,
    ) -> Sampled:
        """One turn from one endpoint.

        Raises StreamLost (an EndpointLost with `.partial`), EndpointRefused, and ContextExceeded when the prompt leaves
        no room for a token.
        """
        stream, patience = _Stream(endpoint, on_progress), self._patience or Patience.of(endpoint)
        chunks = sglang.Chunks() if endpoint.dialect == "sglang" else None
        if chunks is not None:
            path, body = sglang.PATH, sglang.body(prompt_ids, sampling, max_tokens, stop_ids)
        else:
            path, body = "/v1/completions", _body(endpoint.model, prompt_ids, sampling, max_tokens, stop_ids)
        headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=patience.connect, sock_read=None)
        url = endpoint.url.rstrip("/") + path
        try:
            async with asyncio.timeout(patience.first_token):
                response = await self._http.post(
                    url, json=body, headers=headers, timeout=timeout, allow_redirects=False
                )
            async with response:
                if response.status != 200:
                    async with asyncio.timeout(patience.next_token):
                        text = await response.content.read(MAX_ERROR_BYTES)
                    stream.fail(response.status, text.decode(errors="replace"))
                async for event in events(response.content, patience.first_token, patience.next_token):
                    stream.take(event if chunks is None else chunks.read(event))
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            if not stream.finished:
                raise stream.lost(type(error).__name__) from error
        return stream.result()

    async def complete_with_failover(
        self,
        checkout: Checkout,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None = None,
        max_moves: int = 4,
    ) -> Sampled:
        """One turn, from as many endpoints as it takes; each goes on with the ids sampled so far.

        Raises StreamLost when the last of `max_moves` moves failed too, with all that was sampled in `.partial`.
        """
        so_far, moves, failed = Sampled(), 0, None
        while True:
            endpoint = await checkout(failed)
            n = len(so_far.token_ids)
            try:
                rest = await self.complete(
                    endpoint,
                    [*prompt_ids, *so_far.token_ids],
                    _moved(sampling, n),
                    max_tokens - n,
                    stop_ids,
                    on_progress,
                )
                return so_far.followed_by(rest)
            except ContextExceeded:
                if not n:
                    raise
                return Sampled(so_far.token_ids, so_far.logprobs, so_far.weights_versions, "length")
            except StreamLost as lost:
                so_far = so_far.followed_by(lost.partial)
                if whole := so_far.ended(stop_ids, max_tokens):
                    return whole
                if moves == max_moves:
                    raise StreamLost(f"{lost} (after {moves} moves)", so_far) from lost
                moves, failed = moves + 1, endpoint.id


class _Stream:
    """Collects one answer and turns what goes wrong into our errors."""

    def __init__(self, endpoint: Endpoint, on_progress: OnProgress | None) -> None:
        self._endpoint = endpoint
        self._on_progress = on_progress
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._finish_reason: str | None = None

    def take(self, event: Any) -> None:
        """One event: a chunk, an error in the middle of the stream, or a chunk with usage alone."""
        if isinstance(event, dict) and isinstance(event.get("error"), dict):
            self.fail(int(event["error"].get("code") or 500), str(event["error"].get("message", "")))
        if not isinstance(event, dict) or not event.get("choices"):
            return
        choice = event["choices"][0]
        ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs") or []
        if ids is None or len(ids) != len(logprobs):
            raise EndpointRefused(
                f"endpoint {self._endpoint.id} does not send token ids with their logprobs; "
                "it must understand `return_token_ids` and `logprobs` (vLLM 0.10.2 or later)"
            )
        self._ids += ids
        self._logprobs += logprobs
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        if ids and self._on_progress:
            self._on_progress(ids)

    def fail(self, status: int, text: str) -> NoReturn:
        """An HTTP status, or the code in an error event."""
        message = self._plain(text)
        if status == 400 and TOO_LONG in message:
            raise ContextExceeded(message)
        if 400 <= status < 500 and status not in (408, 429):
            raise EndpointRefused(f"endpoint {self._endpoint.id} refused the request ({status}): {message}")
        raise self.lost(f"{status}: {message}")

    def lost(self, why: str) -> StreamLost:
        return StreamLost(f"endpoint {self._endpoint.id} was lost ({why})", self._sampled("abort"))

    @property
    def finished(self) -> bool:
        return self._finish_reason in ("stop", "length")

    def result(self) -> Sampled:
        if self._finish_reason is None:
            raise self.lost("the stream ended early")
        if not self.finished:
            raise self.lost(f"finish_reason {self._finish_reason}")
        return self._sampled(self._finish_reason)

    def _sampled(self, finish_reason: str) -> Sampled:
        versions = [self._endpoint.weights_version] * len(self._ids)
        return Sampled(self._ids, self._logprobs, versions, finish_reason)

    def _plain(self, text: str) -> str:
        """A server may echo what it was sent: the token is taken out."""
        if self._endpoint.token:
            text = text.replace(self._endpoint.token, "…")
        return " ".join(text.split())[:MAX_MESSAGE]


def _moved(sampling: Sampling, drawn: int) -> Sampling:
    if sampling.seed is None or not drawn:
        return sampling
    return sampling.model_copy(update={"seed": seed_after(sampling.seed, drawn)})


def _body(
    model: str, prompt_ids: Sequence[int], sampling: Sampling, max_tokens: int, stop_ids: Sequence[int]
) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "prompt": list(prompt_ids), "max_tokens": max_tokens, "stream": True}
    body |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "stop_token_ids": list(stop_ids)}
    body |= {"logprobs": 0, "return_token_ids": True}
    if sampling.top_k is not None:
        body["top_k"] = sampling.top_k
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body
