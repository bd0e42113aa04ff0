"""Samples for a session of an outside agent: it stays on one endpoint, and moves to another when that one fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from rollyard.core.errors import AnswerRefused, EndpointLost
from rollyard.gateway.requests.call_errors import GatewayError, unavailable
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.requests_in_flight import InFlightRequests
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

MAX_MOVES = 10
POLL_SECONDS = 0.2
WAIT_SECONDS = 60.0
"""A call waits at most this long for another endpoint."""


class SessionPlacer(Protocol):
    """Chooses the endpoints on which sessions sample."""

    def choose(self, pool: PoolKey, least: str | None) -> Endpoint | None:
        """Choose for a new session; None when no ready endpoint has capacity.

        `least`: oldest version of the weights that it may have, None for any.
        """
        ...

    def choose_again(self, pool: PoolKey, current: str, failed: str, least: str | None) -> Endpoint | None:
        """Choose again: `current` unless it failed or is worse than the others, else another; None without one."""
        ...

    def why_none(self, pool: PoolKey, least: str | None) -> str:
        """Return why no endpoint can be chosen, as a sentence."""
        ...

    def to_move(self) -> Mapping[str, int]:
        """Endpoint id -> number of live sessions that should move to another endpoint."""
        ...

    def stranded(self) -> Mapping[str, bool]:
        """Id of an endpoint that is out and has live sessions -> whether another one of its pool accepts work."""
        ...

    def complain(self, endpoint: str, session: str, why: str) -> None:
        """Report that the session could not use the endpoint."""
        ...


class RoutedSampler:
    """Samples turns for one session."""

    def __init__(
        self,
        session: str,
        pool: PoolKey,
        placement: SessionPlacer,
        tokens: TokenClient,
        endpoint: Endpoint,
        stop_ids: Sequence[int],
        on_move: Callable[[str, str], None],
        least: str | None = None,
    ) -> None:
        """`on_move` is called with the ids of the old and the new endpoint.

        `least`: oldest version of the weights that the session may sample from.
        """
        self._session = session
        self._pool = pool
        self._placement = placement
        self._tokens = tokens
        self.endpoint = endpoint
        self._stop_ids = list(stop_ids)
        self._on_move = on_move
        self._min_version = least
        self._move_lock = asyncio.Lock()
        self._in_flight = InFlightRequests()
        self.waiting = ""
        """Why its calls wait for an endpoint, as a sentence; empty when they do not wait."""

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        """Sample one turn, even when endpoints fail meanwhile.

        Raises ContextExceeded, EndpointRefused, and GatewayError when there is no endpoint, or its answer cannot be
        trained on; the session survives that.
        """
        try:
            return await self._tokens.complete_with_failover(
                self._checkout,
                prompt_ids,
                sampling,
                sampling.max_tokens,
                self._stop_ids,
                on_progress,
                MAX_MOVES,
                self._in_flight,
            )
        except EndpointLost as error:
            raise unavailable(f"the model cannot be reached: {error}; repeat the call") from error
        except AnswerRefused as error:  # the next answer would have the same fault
            raise GatewayError(500, "server_error", f"the model's answer cannot be used: {error}") from error

    async def move_if_better(self) -> None:
        """Move to a better endpoint if there is one by now."""
        async with self._move_lock:
            self._switch_to(self._choose_again(""))

    def leave_endpoints(self, out: Collection[str]) -> None:
        """Move requests away from endpoints that are out, each with its sampled ids, if another endpoint is available."""
        if not self._move_lock.locked():
            stays = self.endpoint.id in out and not self._switch_to(self._choose_again(""))
            self.waiting = f"endpoint {self.endpoint.id} does not answer and {self._why_none()}" if stays else ""
        if self.endpoint.id not in out and (ended := self._in_flight.end_quiet(out)):
            log.info("session %s: %d unfinished requests continue at %s", self._session, ended, self.endpoint.id)

    async def _checkout(self, failed: str | None) -> Endpoint:
        began = time.monotonic()  # measured before the lock, because parallel calls wait together
        async with self._move_lock:  # parallel calls report the same lost endpoint only once
            if failed is not None and failed != self.endpoint.id:
                return self.endpoint
            if failed is not None:
                self._placement.complain(failed, self._session, "a session could not use it")
            while not self._switch_to(self._choose_again(failed or "")):
                self.waiting = self._why_none()
                if time.monotonic() - began > WAIT_SECONDS:
                    raise unavailable(f"{self.waiting}, since {WAIT_SECONDS:g} s; repeat the call")
                await asyncio.sleep(POLL_SECONDS)
            self.waiting = ""
            return self.endpoint

    def _choose_again(self, failed: str) -> Endpoint | None:
        return self._placement.choose_again(self._pool, self.endpoint.id, failed, self._min_version)

    def _why_none(self) -> str:
        return self._placement.why_none(self._pool, self._min_version)

    def _switch_to(self, found: Endpoint | None) -> bool:
        if found is None:
            return False
        before, self.endpoint = self.endpoint.id, found
        if found.id != before:
            log.info("session %s moves from endpoint %s to %s", self._session, before, found.id)
            self._on_move(before, found.id)
        return True
