"""The policy as a session of an outside agent sees it: it stays on one endpoint, and goes on at another when that fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from rollyard.core.errors import AnswerRefused, EndpointLost
from rollyard.gateway.requests.call_errors import GatewayError, unavailable
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.requests_in_flight import InFlightRequests
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

PoolKey = tuple[str, str]
"""(namespace, InferencePool name)."""
MAX_MOVES = 10
POLL_SECONDS = 0.2
WAIT_SECONDS = 60.0
"""Longer than this a call does not wait for an endpoint to go on with."""


class SessionPlacer(Protocol):
    """Where sessions sample."""

    def choose(self, pool: PoolKey, least: str | None) -> Endpoint | None:
        """For a session that opens; None when no endpoint is ready and has room. `least`: oldest version of the weights
        that it may have, None for any."""
        ...

    def choose_again(self, pool: PoolKey, current: str, failed: str, least: str | None) -> Endpoint | None:
        """`current` where nothing has failed and it is no worse than the rest, else another. None when there is none."""
        ...

    def why_none(self, pool: PoolKey, least: str | None) -> str:
        """Why there is none, in words."""
        ...

    def to_move(self) -> Mapping[str, int]:
        """Endpoint id -> live sessions that should go on elsewhere."""
        ...

    def stranded(self) -> Mapping[str, bool]:
        """Endpoint that is out, with live sessions -> whether another of its pool takes work."""
        ...

    def complain(self, endpoint: str, session: str, why: str) -> None:
        """The session could not use it."""
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
        moved: Callable[[str, str], None],
        least: str | None = None,
    ) -> None:
        """`moved` is called with the ids of the endpoint that it was on and of the one that it is on now. `least`: oldest
        version of the weights that it may sample from."""
        self._session = session
        self._pool = pool
        self._placement = placement
        self._tokens = tokens
        self.endpoint = endpoint
        self._stop_ids = list(stop_ids)
        self._moved = moved
        self._min_version = least
        self._move_lock = asyncio.Lock()
        self._in_flight = InFlightRequests()
        self.waiting = ""
        """Why its calls have no endpoint to go on at, in words; empty where they have one."""

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        """One turn, whatever endpoints fail meanwhile.

        Raises ContextExceeded, EndpointRefused, and Refusal when there is no endpoint, or one that answers what cannot be
        trained on: the session outlives that.
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
        except AnswerRefused as error:  # the next answer would be no better
            raise GatewayError(500, "server_error", f"the model's answer cannot be used: {error}") from error

    async def move_if_better(self) -> None:
        """Go where it is better by now."""
        async with self._move_lock:
            self._switch_to(self._choose_again(""))

    def leave_endpoints(self, out: Collection[str]) -> None:
        """Requests at endpoints that are out go on elsewhere with the ids they have, if there is an elsewhere."""
        if not self._move_lock.locked():
            stays = self.endpoint.id in out and not self._switch_to(self._choose_again(""))
            self.waiting = f"endpoint {self.endpoint.id} does not answer and {self._why_none()}" if stays else ""
        if self.endpoint.id not in out and (ended := self._in_flight.end_quiet(out)):
            log.info("session %s: %d unfinished requests continue at %s", self._session, ended, self.endpoint.id)

    async def _checkout(self, failed: str | None) -> Endpoint:
        began = time.monotonic()  # and not once it is the call's turn: calls at once wait together
        async with self._move_lock:  # calls at once lose the same endpoint once
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
            self._moved(before, found.id)
        return True
