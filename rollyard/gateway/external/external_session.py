"""One session of an external agent, and what of it is in memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from rollyard.gateway.external.call_journal import StoringJournal
from rollyard.gateway.external.routed_sampler import RoutedSampler
from rollyard.gateway.session.session import GatewaySession
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.session import SessionRequest, SessionView
from rollyard.trajectory.stored_session import SessionProgress, StoredSession


@dataclass(frozen=True)
class LiveSession:
    """The parts of a session that takes calls."""

    session: GatewaySession
    policy: RoutedSampler
    journal: StoringJournal

    def progress(self) -> SessionProgress:
        return progress_of(self.session, self.policy)


@dataclass
class ExternalSession:
    """One session and the server's data about it."""

    request: SessionRequest
    pool: PoolKey
    instance: str
    """Random id that distinguishes the session from an earlier one with the same id."""
    stored: StoredSession
    open: bool = True
    live: LiveSession | None = None
    """None after a restart of the server, until the session is used."""
    rebuilding: asyncio.Task[LiveSession] | None = None
    last_used: float = field(default_factory=time.monotonic)

    def touch(self) -> None:
        self.last_used = time.monotonic()

    @property
    def id(self) -> str:
        return self.stored.id

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last call or read; 0 while a call is in flight."""
        if self.live is not None and self.live.session.in_flight:
            return 0.0
        last_call = self.live.session.last_used if self.live is not None else self.last_used
        return time.monotonic() - max(self.last_used, last_call)

    def progress(self) -> SessionProgress:
        return self.live.progress() if self.live is not None else self.stored.progress

    def view(self) -> SessionView:
        live, progress = self.live, self.progress()
        in_flight = live.session.in_flight if live is not None else 0
        return SessionView(
            id=self.id,
            namespace=self.pool.namespace,
            pool=self.pool.name,
            state="Open" if self.open else "Closed",
            endpoint=progress.endpoint,
            calls=progress.calls,
            in_flight=in_flight,
            waiting=live.policy.waiting if live is not None and in_flight else "",
            tokens=progress.tokens,
            truncated=progress.truncated,
            created_at=self.stored.created_at,
            expires_in_idle=round(max(0.0, self.request.idle_seconds - self.idle_seconds), 3),
        )


def progress_of(session: GatewaySession, policy: RoutedSampler) -> SessionProgress:
    return SessionProgress(session.calls, session.tokens, session.truncated, policy.endpoint.id)
