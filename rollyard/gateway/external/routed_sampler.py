"""Samples turns for a session of an external agent. The session stays on one endpoint until this endpoint fails,
or until the server moves the session."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from rollyard.core.errors import AnswerRefused, EndpointLost, NoEndpoint, Unavailable
from rollyard.gateway.requests.call_errors import GatewayError, unavailable
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.failover import FailoverPolicy
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

WAIT_SECONDS = 60.0
"""Longest time for which a call waits for another endpoint."""


class SessionPlacer(Protocol):
    """Chooses the endpoints of sessions, and counts the sessions on each endpoint.

    `least`: oldest weights version that a session may use; None for any.
    """

    def choose(self, pool: PoolKey, least: str | None) -> Endpoint | None:
        """Choose a ready endpoint for a new session; None if none has capacity and a version that `least` permits."""

    def pin(self, session: str, endpoint: str) -> None:
        """Count an open session on the endpoint."""

    def free(self, session: str) -> None:
        """Stop counting a session, because it is closed."""

    def choose_again(
        self, session: str, pool: PoolKey, current: str, failed: str, least: str | None
    ) -> Endpoint | None:
        """Choose again. Return `current`, unless it failed or another endpoint is better; None if there is no endpoint.

        An open session is then counted on the chosen endpoint.
        """

    def why_none(self, pool: PoolKey, least: str | None) -> str:
        """Return why no endpoint can be chosen, as a sentence."""

    def is_out(self, endpoint: str) -> bool:
        """Return True if the endpoint does not answer."""

    def complain(self, endpoint: str, session: str, why: str) -> None:
        """Report that the session could not use the endpoint."""


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
        least: str | None = None,
    ) -> None:
        self._failover = FailoverPolicy(tokens, endpoint, stop_ids, self._checkout, wait_seconds=WAIT_SECONDS)
        self._session = session
        self._pool = pool
        self._placement = placement
        self._min_version = least

    @property
    def endpoint(self) -> Endpoint:
        return self._failover.endpoint

    @property
    def waiting(self) -> str:
        """Reason why calls wait for an endpoint, as a sentence; empty if they do not wait."""
        if self._placement.is_out(self.endpoint.id):
            return f"endpoint {self.endpoint.id} does not answer and {self._why_none()}"
        return self._failover.waiting

    @property
    def context(self) -> int | None:
        """Length of the endpoint's context in tokens; None if it is not known."""
        return self._failover.context

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        """Sample one turn, even if an endpoint fails during the turn.

        Raises ContextExceeded, EndpointRefused. Raises GatewayError if no endpoint can be reached, or if an answer
        cannot be trained on. After a GatewayError the session can make further calls.
        """
        try:
            return await self._failover.sample(prompt_ids, sampling, sampling.max_tokens, on_progress)
        except EndpointLost as error:
            raise unavailable(f"the model cannot be reached: {error}; repeat the call") from error
        except NoEndpoint as error:
            raise unavailable(f"{error}; repeat the call") from error
        except AnswerRefused as error:  # the next answer would have the same fault
            raise GatewayError(500, "server_error", f"the model's answer cannot be used: {error}") from error

    def leave(self, *, in_flight: bool) -> None:
        """Move to another endpoint, if one can be chosen. `in_flight`: the calls in flight move too, because the
        present endpoint does not answer."""
        if in_flight:
            self._failover.leave()
        elif (found := self._choose_again("")) is not None:
            self._failover.endpoint = found

    async def _checkout(self, current: Endpoint, failed: str, again: bool) -> Endpoint:
        if failed and not again:
            self._placement.complain(failed, self._session, "a session could not use it")
        found = self._choose_again(failed)
        if found is None:
            raise Unavailable(self._why_none())
        return found

    def _choose_again(self, failed: str) -> Endpoint | None:
        before = self.endpoint.id
        found = self._placement.choose_again(self._session, self._pool, before, failed, self._min_version)
        if found is not None and found.id != before:
            log.info("session %s moves from endpoint %s to %s", self._session, before, found.id)
            if self._placement.is_out(before):
                self._failover.leave()  # so that the session's other calls can leave too
        return found

    def _why_none(self) -> str:
        return self._placement.why_none(self._pool, self._min_version)
