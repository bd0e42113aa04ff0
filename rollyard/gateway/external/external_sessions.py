"""Opens the sessions of external agents, finds them for calls, and removes them.

Sessions exist only in the memory of this process, so their number and size are limited.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import aiohttp

from rollyard.core.aio import Signal
from rollyard.core.byte_budget import ByteBudget
from rollyard.core.errors import Conflict, Expired, NotFound, TooManyRequests, Unavailable
from rollyard.gateway.external.routed_sampler import RoutedSampler, SessionPlacer
from rollyard.gateway.external.unmet_demand import UnmetDemand
from rollyard.gateway.requests.call_errors import GatewayError, session_gone
from rollyard.gateway.session.serial_executor import SerialExecutor
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.session import SessionRecord, SessionRequest, SessionTrajectory, SessionView
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.template_cache import TemplateCache
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint

MAX_OPEN = 256
MAX_AT_ONCE = 128
"""Greatest number of parallel calls of one session. Each call uses two connections of the server."""
MAX_KEPT = 4096
"""Greatest number of sessions in memory, including closed ones that were not deleted."""
MAX_BODIES = 256 << 20
"""Greatest number of bytes of memory for the requests of all sessions together."""
MAX_SESSION_TOKENS, MAX_TOKENS = 500_000, 4_000_000
"""Greatest number of recorded tokens in one session, and in all sessions together. A token takes about 100 bytes."""
THREADS = 4
LONG_CHARACTERS = 1 << 12
"""A text with at least this many characters is processed in a thread. Such a text takes more than a few milliseconds,
and the server's event loop also serves rollouts."""
SWEEP_SECONDS = 0.5
RETRY_SECONDS = 5
UNMET_SECONDS, NAMELESS_SECONDS = 60.0, RETRY_SECONDS + 1.0
"""Seconds for which a refused request counts as demand. The second value is for a request without an id. The
server cannot recognise the retry of such a request, and counts the request and its retry as two. A refused client
is told to retry after RETRY_SECONDS. So with this value the first request counts for only about one second more after its
retry."""
MAX_REMEMBERED = 10_000
ADVICE = "open another with POST /v1/sessions"
UNKNOWN_SESSION = "it was dropped, or the server has restarted: sessions exist only in its memory"


@dataclass
class ExternalSession:
    """One session and the server's data about it."""

    request: SessionRequest
    pool: PoolKey
    instance: str
    """Random id that distinguishes the session from an earlier one with the same id."""
    session: GatewaySession
    policy: RoutedSampler
    created_at: float
    open: bool = True

    def touch(self) -> None:
        self.session.last_used = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last call or read; 0 while a call is in flight."""
        return 0.0 if self.session.in_flight else time.monotonic() - self.session.last_used

    def view(self) -> SessionView:
        session = self.session
        return SessionView(
            id=session.id,
            namespace=self.pool.namespace,
            pool=self.pool.name,
            state="Open" if self.open else "Closed",
            endpoint=self.policy.endpoint.id,
            calls=session.calls,
            in_flight=session.in_flight,
            waiting=self.policy.waiting if session.in_flight else "",
            tokens=session.tokens,
            truncated=session.truncated,
            created_at=self.created_at,
            expires_in_idle=round(max(0.0, self.request.idle_seconds - self.idle_seconds), 3),
        )


class ExternalSessions:
    """All external sessions by id."""

    def __init__(self, connector: aiohttp.BaseConnector, placement: SessionPlacer) -> None:
        """`connector` connects to model servers, and is closed with this object."""
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        )
        self._tokens = TokenClient(self._http)
        self._placement = placement
        self._sessions: dict[str, ExternalSession] = {}
        self._ended: dict[str, str] = {}
        """Id of a removed session -> reason of the removal. Only the latest removals are kept."""
        self._threads = ThreadPoolExecutor(THREADS, "gateway")
        self._templates = TemplateCache(self._threads)
        self._byte_budget = ByteBudget(MAX_BODIES)
        self._unmet_demand = UnmetDemand(MAX_OPEN)
        self.session_refused = Signal[PoolKey]()
        """Signal: a session was refused in this pool, because no endpoint had capacity."""

    def demand(self, pool: PoolKey) -> int:
        """Return the number of sessions that a pool should serve. Open sessions count even without a working endpoint;
        refused requests for sessions count too."""
        there = sum(s.open for s in self._sessions.values())
        own = sum(s.open for s in self._sessions.values() if s.pool == pool)
        return own + min(self._unmet_demand.count(pool), MAX_OPEN - there)

    # opening and reading sessions

    async def open(self, namespace: str, request: SessionRequest, now: float) -> tuple[ExternalSession, bool]:
        """Open a session; return it, and whether it is new. `now` in Unix seconds.

        Raises Conflict if a different or closed session has this id, TooManyRequests at a limit, Unavailable if no
        endpoint has capacity, and TemplateUnusable if the model's chat template cannot be used.
        """
        id, pool = request.id or f"s-{secrets.token_hex(8)}", PoolKey(namespace, request.pool)
        if (there := self._existing(id, pool, request)) is not None:
            return there, False
        self._admit()
        endpoint, template, folder = self._pick_endpoint(id, pool, request), None, ""
        while template is None or endpoint.tokenizer != folder:
            folder = endpoint.tokenizer
            template = await self._templates.get(folder)
            if (there := self._existing(id, pool, request)) is not None:  # another request has opened it meanwhile
                return there, False
            self._admit()
            endpoint = self._pick_endpoint(id, pool, request)  # the endpoint chosen before may be full or gone now
        made = self._create(id, pool, request, endpoint, template, now)
        self._sessions[id] = made
        self._ended.pop(id, None)
        self._unmet_demand.drop(pool, id)
        self._placement.pin(id, endpoint.id)
        return made, True

    def get(self, id: str) -> ExternalSession:
        """Return the session, and count this as a use. Raises NotFound, Expired."""
        found = self._sessions.get(id)
        if found is None and id in self._ended:
            raise Expired(f"session {id!r} is gone: {self._ended[id]}; {ADVICE}")
        if found is None:
            raise NotFound(f"there is no session {id!r}; if it existed before, {UNKNOWN_SESSION}; {ADVICE}")
        found.touch()
        return found

    def all(self, namespace: str) -> list[ExternalSession]:
        """List the sessions of a namespace. This does not count as a use."""
        return [found for found in self._sessions.values() if found.pool.namespace == namespace]

    async def record(self, id: str) -> str:
        """Return the `SessionRecord` so far, as JSON. Raises NotFound, Expired."""
        found = self.get(id)
        session = found.session

        def read() -> str:
            segments, turns, breaks = session.segments(), session.turns(), session.breaks()
            trajectory = SessionTrajectory(segments=segments, turns=turns, breaks=breaks)
            return SessionRecord(session=found.view(), trajectory=trajectory).model_dump_json()

        return await session.run_serialized(read)

    def close(self, id: str) -> None:
        """Refuse further calls of the session, and cancel the calls in flight. The trajectory stays. Raises NotFound,
        Expired."""
        found = self.get(id)
        if found.open:
            found.open = False
            found.session.close()
            self._placement.free(id)

    def drop(self, id: str, why: str) -> ExternalSession:
        """Remove the session with its trajectory. Raises NotFound, Expired."""
        self.close(id)
        dropped = self._sessions.pop(id)
        self._ended[id] = why
        while len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]
        return dropped

    # model calls

    def session_for_call(self, id: str, instance: str | None) -> GatewaySession:
        """Find the session of a call. `instance`: the instance in the caller's session key; None for callers that may
        use all sessions. Raises GatewayError."""
        found = self._sessions.get(id)
        if found is None or instance not in (None, found.instance):
            raise session_gone(f"session {id!r} is gone: {self._ended.get(id, UNKNOWN_SESSION)}; {ADVICE}")
        if not found.open:
            raise session_gone(f"session {id!r} is closed; GET /v1/sessions/{id} has its trajectory; {ADVICE}")
        if not self._make_room():
            message = f"the sessions of this server have {MAX_TOKENS} tokens, the limit: close or delete some, then call again"
            raise GatewayError(429, "rate_limit_error", message, code="sessions_full")
        return found.session

    # background work

    async def run(self) -> None:
        """Remove each session that has been unused for its `idle_seconds`. This loop runs until it is cancelled."""
        while True:
            for id, found in list(self._sessions.items()):
                if found.idle_seconds > found.request.idle_seconds:
                    self.drop(id, f"it was not used for {found.request.idle_seconds:g} s")
            await asyncio.sleep(SWEEP_SECONDS)

    def ask_to_move(self, id: str, endpoint: str, urgent: bool) -> bool:
        """Move a session from its endpoint, and return whether it moves. If `urgent`, only a session with calls in
        flight moves, and these calls continue on another endpoint. Otherwise only a session without calls in flight
        moves."""
        found = self._sessions[id]
        busy = found.session.in_flight > 0
        if busy is urgent:
            found.policy.leave(in_flight=busy)
        return busy is urgent

    def end_calls(self) -> None:
        """Close every session, which ends its calls. The server calls this when it stops."""
        for id in list(self._sessions):
            self.close(id)

    async def shut_down(self) -> None:
        self.end_calls()
        self._templates.close()
        await self._http.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    # internals

    def _existing(self, id: str, pool: PoolKey, request: SessionRequest) -> ExternalSession | None:
        there = self._sessions.get(id)
        if there is not None and (there.request, there.pool, there.open) != (request, pool, True):
            what = "with another body" if there.open else "which is closed"
            if there.pool.namespace != pool.namespace:
                what = f"in namespace {there.pool.namespace!r}; an id is unique on the whole server"
            raise Conflict(
                f"a session {id!r} already exists, {what}; use another id, or no id, or delete it with "
                f"DELETE /v1/sessions/{id}"
            )
        if there is not None:
            there.touch()
        return there

    def _pick_endpoint(self, id: str, pool: PoolKey, request: SessionRequest) -> Endpoint:
        """Choose the endpoint of a new session. Raises Unavailable."""
        endpoint = self._placement.choose(pool, request.min_weights_version)
        if endpoint is None:
            self._unmet_demand.add(pool, id, UNMET_SECONDS if request.id is not None else NAMELESS_SECONDS)
            self.session_refused.emit(pool)
            raise Unavailable(self._placement.why_none(pool, request.min_weights_version), retry_after=RETRY_SECONDS)
        return endpoint

    def _admit(self) -> None:
        if sum(s.open for s in self._sessions.values()) >= MAX_OPEN:
            message = f"{MAX_OPEN} sessions are open, which is the limit: close some, or wait until they expire"
            raise TooManyRequests(message, retry_after=RETRY_SECONDS)
        if len(self._sessions) >= MAX_KEPT:
            message = f"{MAX_KEPT} sessions are kept, which is the limit: delete closed ones"
            raise TooManyRequests(message, retry_after=RETRY_SECONDS)
        if not self._make_room():
            message = f"the sessions of this server have {MAX_TOKENS} tokens, the limit: close or delete some"
            raise TooManyRequests(message, retry_after=RETRY_SECONDS)

    def _make_room(self) -> bool:
        return sum(s.session.tokens for s in self._sessions.values()) < MAX_TOKENS

    def _create(
        self, id: str, pool: PoolKey, request: SessionRequest, endpoint: Endpoint, template: ChatTemplate, now: float
    ) -> ExternalSession:
        policy = RoutedSampler(
            id,
            pool,
            self._placement,
            self._tokens,
            endpoint,
            template.stop_ids,
            request.min_weights_version,
        )
        config = SessionConfig(
            model=endpoint.model,
            sampling=request.sampling,
            fixed=not request.caller_sampling,
            max_calls=request.max_calls,
            tool_parser=request.tool_parser,
            max_tokens=MAX_SESSION_TOKENS,
            max_at_once=MAX_AT_ONCE,
        )
        session = GatewaySession(
            id, template, policy, config, SerialExecutor(self._threads, LONG_CHARACTERS), self._byte_budget
        )
        return ExternalSession(request, pool, secrets.token_hex(8), session, policy, now)
