"""Client that samples from model servers, with token ids in the request and in the answer.

Answers are streamed, so that the ids received before a failure are not lost. Another endpoint can continue after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic_core import to_json

from rollyard.core.errors import ContextExceeded, EndpointRefused
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.endpoint_routes import Route, Routes
from rollyard.tokens.requests_in_flight import InFlightRequest, InFlightRequests
from rollyard.tokens.sampled_tokens import Sampled, top_logprobs
from rollyard.tokens.streamed_response import OnProgress, PromptTooLong, SentRequest, StreamedResponse
from rollyard.wire.endpoint import Endpoint

_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)
"""Exceptions that parsing a malformed event raises."""
MAX_ERROR_BYTES = 1 << 16


@dataclass(frozen=True)
class StreamTimeouts:
    """Time limits of a streamed answer, in seconds."""

    connect: float = 10.0
    first_token: float = 300.0
    """Limit from the request to the header of the answer, and also from the header to the first token. This time
    includes the wait in the engine's queue and the processing of the prompt."""
    next_token: float = 60.0

    @classmethod
    def of(cls, endpoint: Endpoint) -> StreamTimeouts:
        """Return the limits that the endpoint's pool sets."""
        limits = endpoint.patience
        return cls(limits.connect_seconds, limits.first_token_seconds, limits.idle_seconds)


class TokenClient:
    """Calls model servers.

    `http`: session that trusts the servers' certificates; the caller closes it. `timeouts`: limits for all endpoints; by
    default each endpoint's own limits apply.
    """

    def __init__(self, http: aiohttp.ClientSession, timeouts: StreamTimeouts | None = None) -> None:
        self._http = http
        self._timeouts = timeouts
        self._routes = Routes(http)

    def known_context(self, endpoint: Endpoint) -> int | None:
        """Return the length of an endpoint's context in tokens; None if it is not known yet."""
        return self._routes.known_context(endpoint)

    async def complete(
        self,
        endpoint: Endpoint,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None = None,
        in_flight: InFlightRequests | None = None,
    ) -> Sampled:
        """Sample one turn on one endpoint.

        Raises StreamLost if the endpoint fails or `in_flight` ends the request; `.partial` has the tokens received so far.
        Raises EndpointRefused if the endpoint refuses the request or returns other logprobs than `sampling` names,
        AnswerRefused if the answer cannot be trained on, and ContextExceeded if no token fits after the prompt.
        """
        if sampling.logprobs != endpoint.logprobs:
            raise EndpointRefused(
                f"endpoint {endpoint.id} returns {endpoint.logprobs} logprobs; ask for `sampling.logprobs: "
                f"{endpoint.logprobs}`, or set `logprobsMode: {sampling.logprobs}` in the pool's `engine.vllm`, or in the "
                "endpoint's entry of `engine.external.endpoints`"
            )
        route = await self._routes.of(endpoint)
        if route.context is not None:
            max_tokens = min(max_tokens, route.context - len(prompt_ids))
            if max_tokens < 1:
                raise ContextExceeded(
                    f"the conversation has {len(prompt_ids)} tokens, and the context {route.context}",
                    context=route.context,
                )
        try:
            return await self._ask(endpoint, route, prompt_ids, sampling, max_tokens, stop_ids, on_progress, in_flight)
        except PromptTooLong as error:
            # some engines refuse a prompt if prompt and max_tokens together exceed the context
            room = error.context - len(prompt_ids) if error.context is not None else 0
            if not 0 < room < max_tokens:
                raise
            return await self._ask(endpoint, route, prompt_ids, sampling, room, stop_ids, on_progress, in_flight)

    async def _ask(
        self,
        endpoint: Endpoint,
        route: Route,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None,
        in_flight: InFlightRequests | None,
    ) -> Sampled:
        stops = frozenset([*stop_ids, *sampling.stop_token_ids])
        sent = SentRequest(list(prompt_ids), max_tokens, stops, top_logprobs(sampling))
        request = InFlightRequest(endpoint.id, on_progress)
        answer = StreamedResponse(endpoint, route.dialect, sent, request)
        body = route.dialect.body(endpoint.model, prompt_ids, sampling, max_tokens, stop_ids)
        try:
            async with (in_flight or InFlightRequests()).during(request):
                await self._stream(endpoint, route, body, answer)
        except (aiohttp.ClientError, OSError, *_MALFORMED) as error:  # TimeoutError is an OSError
            if not answer.finished:
                raise answer.lost(type(error).__name__) from error
        return answer.result()

    async def _stream(self, endpoint: Endpoint, route: Route, body: dict[str, Any], answer: StreamedResponse) -> None:
        headers = {"Content-Type": "application/json"}
        if endpoint.token:
            headers["Authorization"] = f"Bearer {endpoint.token}"
        timeouts = self._timeouts or StreamTimeouts.of(endpoint)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect, sock_read=None)
        url = endpoint.url.rstrip("/") + route.dialect.path
        async with asyncio.timeout(timeouts.first_token):
            response = await self._http.post(
                url, data=to_json(body), headers=headers, timeout=timeout, allow_redirects=False
            )
        async with response:
            if response.status != 200:
                async with asyncio.timeout(timeouts.next_token):
                    text = await response.content.read(MAX_ERROR_BYTES)
                answer.fail(response.status, text.decode(errors="replace"))
            await answer.read(response.content, timeouts.first_token, timeouts.next_token)
