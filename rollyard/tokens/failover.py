"""Sampling that survives the failure of an endpoint.

A conversation stays on one endpoint until its `Checkout` returns another. If an endpoint fails during a turn, another
endpoint continues with the ids sampled so far. The node agent uses this module for its leases, and the gateway for the
sessions of external agents. Each caller passes its own `Checkout`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rollyard.core.backoff import Backoff
from rollyard.core.errors import ContextExceeded, NoEndpoint, RollyardError, Unavailable
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.constraint import is_constrained
from rollyard.tokens.requests_in_flight import InFlightRequests
from rollyard.tokens.sampled_tokens import Sampled, StreamLost
from rollyard.tokens.streamed_response import OnProgress
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import SEED_STRIDE, Endpoint

log = logging.getLogger(__name__)

MAX_MOVES = 10
"""Greatest number of times that one turn moves to another endpoint."""
MAX_FRUITLESS = 3
"""Greatest number of requests of one turn that fail in a row at one endpoint without a new token."""
RETRY_SECONDS = 1.0
"""Longest wait before the first retry at an endpoint that has just failed. It doubles with each further retry."""
POLL_SECONDS = 0.2


class Checkout(Protocol):
    """Chooses an endpoint. It is called before each turn, after each failure, and by `FailoverPolicy.leave`."""

    async def __call__(self, current: Endpoint, failed: str, again: bool) -> Endpoint:
        """Return `current` or another endpoint. Raises Unavailable if there is none; `FailoverPolicy` then calls again.

        `failed`: id of `current` if this endpoint has just failed, else empty. `again`: whether the previous call raised
        Unavailable.
        """


class FailoverPolicy:
    """Sends one conversation's calls to an endpoint. Parallel calls use the same endpoint."""

    def __init__(
        self,
        tokens: TokenClient,
        endpoint: Endpoint,
        stop_ids: Sequence[int],
        checkout: Checkout,
        *,
        wait_seconds: float,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """`wait_seconds`: greatest wait for an endpoint. `poll_seconds`: longest pause between checkouts during this wait."""
        self.endpoint = endpoint
        self.waiting = ""
        """Reason why the calls wait for an endpoint; empty if they do not wait."""
        self.limit: asyncio.Timeout | None = None
        """Time limit of the caller. It is paused while a failed endpoint is replaced, because the caller did not cause
        the failure."""
        self._tokens = tokens
        self._stop_ids = list(stop_ids)
        self._checkout = checkout
        self._wait_seconds, self._poll_seconds = wait_seconds, poll_seconds
        self._move_lock = asyncio.Lock()
        self._in_flight = InFlightRequests()
        self._sampling = 0
        self._leave_task: asyncio.Task[None] | None = None

    @property
    def context(self) -> int | None:
        """Length of the present endpoint's context in tokens; None if it is not known."""
        return self._tokens.known_context(self.endpoint)

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, max_tokens: int, on_progress: OnProgress | None = None
    ) -> Sampled:
        """Sample one turn. After a failure another endpoint continues with the ids sampled so far.

        A constrained turn begins again instead, and `on_progress` then gets the ids of the new beginning too.

        A retry at an endpoint that has failed during this turn waits first, because such an endpoint may answer probes
        and still fail.

        Raises StreamLost if an endpoint failed after MAX_MOVES moves, or if there is no other endpoint than one that has
        failed MAX_FRUITLESS times without a new token; `.partial` has all sampled tokens. Also raises
        ContextExceeded, EndpointRefused, NoEndpoint, and the errors of the checkout except Unavailable.
        """
        self._sampling += 1
        try:
            return await self._sample(prompt_ids, sampling, max_tokens, on_progress)
        finally:
            self._sampling -= 1
            if not self._sampling and self._leave_task is not None:
                self._leave_task.cancel()

    def leave(self) -> None:
        """Get an endpoint from the checkout at once, and move the calls in flight to it, with the ids sampled so far.

        A call moves only when it has received no tokens for QUIET_SECONDS. If no call is in flight, do nothing.
        """
        if self._sampling and (self._leave_task is None or self._leave_task.done()):
            self._leave_task = asyncio.create_task(self._leave())

    async def _sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, max_tokens: int, on_progress: OnProgress | None
    ) -> Sampled:
        so_far, moves, failed = Sampled(), 0, ""
        fruitless, retries, why = Counter[str](), Backoff(RETRY_SECONDS), ""
        while True:
            endpoint, n = await self._next_endpoint(failed), len(so_far.token_ids)
            if fruitless[endpoint.id] == MAX_FRUITLESS:
                raise StreamLost(
                    f"{why} ({MAX_FRUITLESS} times without a token, and no other endpoint can be used)", so_far
                )
            if fruitless[endpoint.id]:
                with self._paused_limit():
                    await retries.wait()
            prompt, rest = [*prompt_ids, *so_far.token_ids], _sampling_for_rest(sampling, n)
            try:
                return so_far.followed_by(
                    await self._tokens.complete(
                        endpoint, prompt, rest, max_tokens - n, self._stop_ids, on_progress, self._in_flight
                    )
                )
            except ContextExceeded:
                if not n:
                    raise
                return replace(so_far, finish_reason="length")
            except StreamLost as lost:
                so_far = so_far.followed_by(lost.partial)
                if whole := so_far.ended([*self._stop_ids, *sampling.stop_token_ids], max_tokens):
                    return whole
                if is_constrained(sampling):  # an engine applies a grammar from the end of the prompt on
                    so_far = Sampled()
                if moves == MAX_MOVES:
                    raise StreamLost(f"{lost} (after {moves} moves)", so_far) from lost
                moves, failed, why = moves + 1, endpoint.id, str(lost)
                if len(so_far.token_ids) > n:
                    fruitless.clear()
                    retries.reset()
                else:
                    fruitless[failed] += 1

    async def _leave(self) -> None:
        before = self.endpoint.id
        try:
            await self._next_endpoint("")
        # the lease is void or no endpoint is free: the next request raises the same error
        except RollyardError as error:
            log.info("staying at endpoint %s: %s", before, error)
            return
        while left := self._in_flight.endpoint_ids() - {self.endpoint.id}:
            if ended := self._in_flight.end_quiet(left):
                log.warning("endpoint %s is down: %d requests continue at %s", before, ended, self.endpoint.id)
            await asyncio.sleep(POLL_SECONDS)

    async def _next_endpoint(self, failed: str) -> Endpoint:
        began = time.monotonic()  # before the lock, so that the wait for a parallel call counts too
        async with self._move_lock:
            if failed in ("", self.endpoint.id):  # else a parallel call has already replaced the failed endpoint
                with self._paused_limit() if failed else contextlib.nullcontext():
                    self.endpoint = await self._wait_for_endpoint(failed, began)
            return self.endpoint

    async def _wait_for_endpoint(self, failed: str, began: float) -> Endpoint:
        backoff, again = Backoff(POLL_SECONDS, self._poll_seconds), False
        while True:
            try:
                found = await self._checkout(self.endpoint, failed, again)
            except Unavailable as error:
                self.waiting = str(error)
            else:
                self.waiting = ""
                return found
            if time.monotonic() - began > self._wait_seconds:
                raise NoEndpoint(f"no endpoint for {self._wait_seconds:g} s: {self.waiting}")
            if not again:
                log.warning("waiting for another endpoint than %s: %s", self.endpoint.id, self.waiting)
            again = True
            await backoff.wait()

    @contextlib.contextmanager
    def _paused_limit(self) -> Iterator[None]:
        limit, loop = self.limit, asyncio.get_running_loop()
        when, began = limit.when() if limit is not None else None, loop.time()
        if limit is None or when is None:
            yield
            return
        limit.reschedule(None)
        try:
            yield
        finally:
            limit.reschedule(when + loop.time() - began)


def seed_after(seed: int, drawn: int) -> int:
    """Return the seed with which a request continues at another endpoint after `drawn` tokens.

    The same seed would repeat the draws of the first tokens.
    """
    shifted = (seed + drawn * SEED_STRIDE) % 2**64
    return shifted - 2**64 if shifted >= 2**63 else shifted


def _sampling_for_rest(sampling: Sampling, drawn: int) -> Sampling:
    """Return the parameters for the rest of a turn: another seed, and `min_tokens` less the tokens drawn so far."""
    if not drawn:
        return sampling
    update: dict[str, Any] = {}
    if sampling.seed is not None:
        update["seed"] = seed_after(sampling.seed, drawn)
    if sampling.min_tokens is not None:
        update["min_tokens"] = max(sampling.min_tokens - drawn, 0)
    return evolve(sampling, **update)
