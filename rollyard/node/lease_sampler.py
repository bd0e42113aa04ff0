"""Sampling for one role of a lease, at endpoints that the server chooses and records."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import aiohttp

from rollyard.client.server_link import ServerLink
from rollyard.core.backoff import Backoff
from rollyard.core.errors import ContextExceeded, NoEndpoint, Unavailable
from rollyard.kinds.rollout import Sampling
from rollyard.kinds.rollout_pool import POLICY_ROLE
from rollyard.tokens.failover import FailoverPolicy
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.node import LeaseRef, NewEndpoint

log = logging.getLogger(__name__)

PARKED_SECONDS, POLL_SECONDS = 300.0, 2.0
"""Seconds for which a rollout without an endpoint keeps its sandbox, and the longest pause between two requests for an
endpoint, in seconds."""


class LeaseSampler:
    """Samples turns for one role of a lease."""

    def __init__(
        self,
        link: ServerLink,
        http: aiohttp.ClientSession,
        tokens: TokenClient,
        ref: LeaseRef,
        endpoint: Endpoint,
        stop_ids: Sequence[int],
        context_tokens: int | None,
        role: str = POLICY_ROLE,
    ) -> None:
        self.failover = FailoverPolicy(
            tokens, endpoint, stop_ids, self._checkout, wait_seconds=PARKED_SECONDS, poll_seconds=POLL_SECONDS
        )
        self._link = link
        self._http = http
        self._ref = ref
        self._role = role
        self._context = context_tokens
        self.turns_requested = 0
        self.tokens_arrived = 0
        """Number of tokens that have arrived, including those of turns that were cut off."""
        self._rechoose_requested = False

    def rechoose(self, *, now: bool = False) -> None:
        """Request a better endpoint before the next turn; with `now` immediately, even in the middle of a turn."""
        self._rechoose_requested = True
        if now:
            self.failover.leave()

    @property
    def context(self) -> int | None:
        """Number of tokens that prompt and answer may have together; None if it is not known."""
        known = [one for one in (self._context, self.failover.context) if one is not None]
        return min(known, default=None)

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        """Sample one turn. If an endpoint fails meanwhile, another endpoint continues the turn.

        Raises ContextExceeded, EndpointLost, EndpointRefused, Fenced, and NoEndpoint after PARKED_SECONDS without an
        endpoint. After NoEndpoint the rollout must be handed back.
        """
        self.turns_requested += 1
        limit = sampling.max_tokens
        if self._context is not None:
            limit = min(limit, self._context - len(prompt_ids))
        if limit < 1:
            raise ContextExceeded(
                f"the conversation has {len(prompt_ids)} tokens, and the context {self._context}", context=self._context
            )

        def on_chunk(chunk: Sampled) -> None:
            self.tokens_arrived += len(chunk.token_ids)
            if on_progress is not None:
                on_progress(chunk)

        return await self.failover.sample(prompt_ids, sampling, limit, on_chunk)

    async def _checkout(self, current: Endpoint, failed: str, again: bool) -> Endpoint:
        """Return the endpoint for the next request: the current one, unless it failed or the server requested a new
        choice. If the server has no other endpoint, return the current one, or raise Unavailable if the current one
        failed. Raises Fenced."""
        if not failed and not self._rechoose_requested:
            return current
        if failed and not again:
            log.warning("endpoint %s failed during a turn", failed)
        why = "a node agent could not use it" if failed else "the server asked it to choose again"
        wanted = NewEndpoint(lease=self._ref, role=self._role, failed=failed, why=why, again=again)
        try:
            found = Endpoint.from_wire(await self._link.post(self._http, "/v1/node/endpoint", wanted.model_dump_json()))
        except Unavailable as error:
            if failed:
                raise
            log.info("staying at endpoint %s: %s", current.id, error)
            found = current
        self._rechoose_requested = False
        return found


async def first_endpoint(link: ServerLink, http: aiohttp.ClientSession, ref: LeaseRef, role: str) -> Endpoint:
    """Ask the server for an endpoint of a role that the lease has none of. Raises Fenced, Invalid if the pool does not have
    the role, and NoEndpoint after PARKED_SECONDS without an endpoint."""
    wanted = NewEndpoint(lease=ref, role=role, failed="", why="a task handler calls the role's model")
    backoff, began = Backoff(POLL_SECONDS / 10, POLL_SECONDS), time.monotonic()
    while True:
        try:
            return Endpoint.from_wire(await link.post(http, "/v1/node/endpoint", wanted.model_dump_json()))
        except Unavailable as error:
            if time.monotonic() - began > PARKED_SECONDS:
                raise NoEndpoint(str(error)) from None
        await backoff.wait()
