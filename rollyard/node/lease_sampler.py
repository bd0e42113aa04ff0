"""The policy as one rollout sees it: sampling stays on the lease's endpoint and moves to another when that one fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Sequence

import aiohttp

from rollyard.client.server_link import Backoff, ServerLink
from rollyard.core.errors import ContextExceeded, NoEndpoint, RollyardError, Unavailable
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.requests_in_flight import InFlightRequests
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.node import LeaseRef, NewEndpoint

log = logging.getLogger(__name__)

ROLE = "policy"
MAX_MOVES = 10
POLL_SECONDS = 0.2
PARKED_SECONDS = 300.0
"""A rollout keeps its sandbox for at most this long while there is no endpoint."""


class LeaseSampler:
    """Samples turns for one lease."""

    def __init__(
        self,
        link: ServerLink,
        http: aiohttp.ClientSession,
        tokens: TokenClient,
        ref: LeaseRef,
        endpoint: Endpoint,
        stop_ids: Sequence[int],
        context_tokens: int | None,
    ) -> None:
        self._link = link
        self._http = http
        self._tokens = tokens
        self._ref = ref
        self.endpoint = endpoint
        self._stop_ids = list(stop_ids)
        self._context = context_tokens
        self._move_lock = asyncio.Lock()
        self.limit: asyncio.Timeout | None = None
        """RUN's budget; it is paused while there is no endpoint, because that gap is not the agent's fault."""
        self.request_sent_at = 0
        """Number of turns requested."""
        self.answered_at = 0
        """Number of tokens that have arrived, including those of turns that were cut off."""
        self._rechoose_requested = False
        self._in_flight = InFlightRequests()
        self._sampling = 0
        self._leave_task: asyncio.Task[None] | None = None

    def rechoose(self, *, now: bool = False) -> None:
        """Ask for a better endpoint before the next turn; `now`: also in the middle of a turn."""
        self._rechoose_requested = True
        if now and self._sampling and (self._leave_task is None or self._leave_task.done()):
            self._leave_task = asyncio.create_task(self._leave())

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        """Sample one turn, even when endpoints fail meanwhile.

        Raises ContextExceeded, EndpointLost, EndpointRefused, NoEndpoint, Fenced.
        """
        self.request_sent_at += 1
        limit = sampling.max_tokens
        if self._context is not None:
            limit = min(limit, self._context - len(prompt_ids))
        if limit < 1:
            raise ContextExceeded(
                f"the conversation has {len(prompt_ids)} tokens, and the context {self._context}", context=self._context
            )

        def on_ids(ids: Sequence[int]) -> None:
            self.answered_at += len(ids)
            if on_progress is not None:
                on_progress(ids)

        self._sampling += 1
        try:
            return await self._tokens.complete_with_failover(
                self._checkout, prompt_ids, sampling, limit, self._stop_ids, on_ids, MAX_MOVES, self._in_flight
            )
        finally:
            self._sampling -= 1
            if not self._sampling and self._leave_task is not None:
                self._leave_task.cancel()

    async def _leave(self) -> None:
        """Move requests away from a failed endpoint, each with its sampled ids, once no more tokens arrive from there."""
        before = self.endpoint.id
        try:
            await self._checkout(None)
        # the lease is void or the server is unreachable: the next request reports it again
        except RollyardError as error:
            log.info("staying at endpoint %s: %s", before, error)
            return
        while left := self._in_flight.endpoint_ids() - {self.endpoint.id}:
            if ended := self._in_flight.end_quiet(left):
                log.warning("endpoint %s is down: %d requests continue at %s", before, ended, self.endpoint.id)
            await asyncio.sleep(POLL_SECONDS)

    async def _checkout(self, failed: str | None) -> Endpoint:
        async with self._move_lock:  # parallel calls of one agent report the same lost endpoint only once
            if failed is None:
                if self._rechoose_requested:
                    self.endpoint = await self._ask_for_better()
                    self._rechoose_requested = False
            elif failed == self.endpoint.id:
                log.warning("endpoint %s failed during a turn", failed)
                self.endpoint = await self._wait_for_another(failed)
                self._rechoose_requested = False
            return self.endpoint

    async def _ask_for_better(self) -> Endpoint:
        """Return the server's best endpoint now, or the current one when the server names none. Raises Fenced."""
        wanted = NewEndpoint(lease=self._ref, role=ROLE, failed="", why="the server asked it to choose again")
        try:
            answer = await self._link.post(self._http, "/v1/node/endpoint", wanted.model_dump_json())
        except Unavailable as error:
            log.info("staying at endpoint %s: %s", self.endpoint.id, error)
            return self.endpoint
        return Endpoint.from_wire(answer)

    async def _wait_for_another(self, failed: str) -> Endpoint:
        """Wait, parked, until another endpoint is ready. Raises NoEndpoint after PARKED_SECONDS: the rollout is handed
        back."""
        wanted = NewEndpoint(lease=self._ref, role=ROLE, failed=failed, why="a node agent could not use it")
        backoff, began = Backoff(0.2, 2.0), time.monotonic()
        with self._parked():
            while True:
                try:
                    answer = await self._link.post(self._http, "/v1/node/endpoint", wanted.model_dump_json())
                    return Endpoint.from_wire(answer)
                except Unavailable as error:
                    log.warning("no other endpoint yet: %s", error)
                wanted = evolve(wanted, again=True)
                if time.monotonic() - began > PARKED_SECONDS:
                    raise NoEndpoint(f"no other endpoint was ready for {PARKED_SECONDS:g} s")
                await backoff.wait()

    @contextlib.contextmanager
    def _parked(self) -> Iterator[None]:
        limit, began = self.limit, asyncio.get_running_loop().time()
        when = limit.when() if limit is not None else None
        if limit is None or when is None:
            yield
            return
        limit.reschedule(None)
        try:
            yield
        finally:
            limit.reschedule(when + asyncio.get_running_loop().time() - began)
