"""Opens the sessions of external agents, finds them for calls, and removes them.

Sessions are stored: a call's turn is in the store before the caller gets the end of the answer. After a restart of the
server a session is rebuilt from its stored calls when it is first used. Sessions in use are in memory, so their number
and size are limited. They are one class in one file, because each step checks or changes the same sessions and limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from concurrent.futures import ThreadPoolExecutor

import aiohttp

from rollyard.core.aio import Signal
from rollyard.core.byte_budget import ByteBudget
from rollyard.core.errors import (
    Conflict,
    Expired,
    NotFound,
    TaskError,
    TemplateUnusable,
    TooManyRequests,
    Unavailable,
)
from rollyard.gateway.external.call_journal import StoringJournal
from rollyard.gateway.external.external_session import ExternalSession, LiveSession, progress_of
from rollyard.gateway.external.routed_sampler import RoutedSampler, SessionPlacer
from rollyard.gateway.external.unmet_demand import UnmetDemand
from rollyard.gateway.requests.call_errors import GatewayError, session_gone, template_unusable, unavailable
from rollyard.gateway.session.serial_executor import SerialExecutor
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.gateway.session.stored_call import StoredCall
from rollyard.kinds.base import evolve
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.session import SessionRequest
from rollyard.store.session_tables import SessionTables
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.template_cache import TemplateCache
from rollyard.tokens.token_client import TokenClient
from rollyard.trajectory.session import SessionRecord, SessionTrajectory
from rollyard.trajectory.stored_session import SessionProgress, StoredSession
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.tool_proof import ToolProof

log = logging.getLogger(__name__)

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
NOTE_SECONDS = 5.0
"""Interval at which the idle times of sessions are stored."""
RETRY_SECONDS = 5
UNMET_SECONDS, NAMELESS_SECONDS = 60.0, RETRY_SECONDS + 1.0
"""Seconds for which a refused request counts as demand. The second value is for a request without an id. The
server cannot recognise the retry of such a request, and counts the request and its retry as two. A refused client
is told to retry after RETRY_SECONDS. So with this value the first request counts for only about one second more after its
retry."""
MAX_REMEMBERED = 10_000
ADVICE = "open another with POST /v1/sessions"
UNKNOWN_SESSION = "it was removed long ago, or it never existed"
STOPPING = "the server is stopping; repeat the call, and the next server answers it"


class ExternalSessions:
    """All external sessions by id."""

    def __init__(self, connector: aiohttp.BaseConnector, placement: SessionPlacer, store: SessionTables) -> None:
        """`connector` connects to model servers, and is closed with this object."""
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        )
        self._tokens = TokenClient(self._http)
        self._placement = placement
        self._store = store
        self._next_idle_note = 0.0
        self._sessions: dict[str, ExternalSession] = {}
        self._ended: dict[str, str] = {}
        """Id of a removed session -> reason of the removal. Only the latest removals are kept."""
        self._threads = ThreadPoolExecutor(THREADS, "gateway")
        self._templates = TemplateCache(self._threads)
        self.template_proven = self._templates.proven
        """Signal: a template's tool calls were tried out for the first time."""
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

    async def restore(self) -> None:
        """Read the stored sessions. Call this once, before the first request. Raises Unavailable."""
        kept, self._ended = await self._store.load()
        for stored in kept:
            request = SessionRequest.model_validate_json(stored.request)
            found = ExternalSession(
                request, PoolKey(stored.namespace, stored.pool), stored.instance, stored, stored.open
            )
            found.last_used -= stored.idle_seconds
            self._sessions[stored.id] = found
            if stored.open:  # a session counts as demand, and at its endpoint, as before
                self._placement.pin(stored.id, stored.progress.endpoint)

    # opening and reading sessions

    async def open(self, namespace: str, request: SessionRequest, now: float) -> tuple[ExternalSession, bool]:
        """Open a session; return it, and whether it is new. `now` in Unix seconds.

        Raises Conflict if a different or closed session has this id, TooManyRequests at a limit, Unavailable if no
        endpoint has capacity, and TemplateUnusable if the model's chat template cannot be used.
        """
        id, pool = request.id or f"s-{secrets.token_hex(8)}", PoolKey(namespace, request.pool)
        if (there := self._existing(id, pool, request)) is not None:
            await self._store.add(there.stored)  # the request that opens it may still wait for the store
            return there, False
        self._admit()
        endpoint, template, folder = self._pick_endpoint(id, pool, request), None, ""
        while template is None or endpoint.tokenizer != folder:
            folder = endpoint.tokenizer
            template = await self._templates.get(folder)
            proof = await self._templates.proof(folder, request.tool_parser or endpoint.tool_parser)
            if (there := self._existing(id, pool, request)) is not None:  # another request has opened it meanwhile
                await self._store.add(there.stored)
                return there, False
            self._admit()
            endpoint = self._pick_endpoint(id, pool, request)  # the endpoint chosen before may be full or gone now
        if (
            request.tool_parser is None
        ):  # a rebuilt session reads the turns as before, whatever the pool's spec says then
            request = evolve(request, tool_parser=endpoint.tool_parser)
        made = self._create(id, pool, request, endpoint, template, proof, now)
        self._sessions[id] = made
        self._ended.pop(id, None)
        self._unmet_demand.drop(pool, id)
        self._placement.pin(id, endpoint.id)
        await asyncio.shield(asyncio.create_task(self._store_new(made)))
        return made, True

    async def _store_new(self, made: ExternalSession) -> None:
        try:
            await self._store.add(made.stored)
        except Unavailable:
            self._close_in_memory(made)
            self._sessions.pop(made.id, None)
            raise

    def get(self, id: str) -> ExternalSession:
        """Return the session, and count this as a use. Raises NotFound, Expired."""
        found = self._sessions.get(id)
        if found is None and id in self._ended:
            raise Expired(f"session {id!r} is gone: {self._ended[id]}; {ADVICE}")
        if found is None:
            raise NotFound(f"there is no session {id!r}: {UNKNOWN_SESSION}; {ADVICE}")
        found.touch()
        return found

    def all(self, namespace: str) -> list[ExternalSession]:
        """List the sessions of a namespace. This does not count as a use."""
        return [found for found in self._sessions.values() if found.pool.namespace == namespace]

    async def record(self, id: str) -> str:
        """Return the `SessionRecord` so far, as JSON. Raises NotFound, Expired."""
        found = self.get(id)
        live = await self._live(found)
        session = live.session

        def read() -> str:
            segments, turns, breaks = session.segments(), session.turns(), session.breaks()
            trajectory = SessionTrajectory(segments=segments, turns=turns, breaks=breaks)
            return SessionRecord(session=found.view(), trajectory=trajectory).model_dump_json()

        told = await session.run_serialized(read)
        await live.journal.flush()  # a turn may be recorded and not yet stored
        return told

    async def close(self, id: str) -> None:
        """Refuse further calls of the session, and cancel the calls in flight. The trajectory stays. Raises NotFound,
        Expired, Unavailable."""
        found = self.get(id)
        self._close_in_memory(found)
        await self._store.close(found.instance)

    async def drop(self, id: str, why: str) -> ExternalSession:
        """Remove the session with its trajectory. Raises NotFound, Expired, Unavailable."""
        found = self.get(id)
        self._close_in_memory(found)
        await self._store.remove(found.instance, why)
        if self._sessions.get(id) is found:
            del self._sessions[id]
            self._ended[id] = why
            while len(self._ended) > MAX_REMEMBERED:
                del self._ended[next(iter(self._ended))]
        return found

    def _close_in_memory(self, found: ExternalSession) -> None:
        if found.open:
            found.open = False
            if found.live is not None:
                found.live.session.close()
            self._placement.free(found.id)

    # model calls

    async def session_for_call(self, id: str, instance: str | None) -> GatewaySession:
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
        try:
            return (await self._live(found)).session
        except TemplateUnusable as error:
            raise template_unusable(str(error)) from error
        except Unavailable as error:
            raise unavailable(str(error)) from error

    async def _live(self, found: ExternalSession) -> LiveSession:
        """Return the session's parts; rebuild them after a restart. Raises TemplateUnusable, Unavailable."""
        if found.live is not None:
            return found.live
        found.touch()
        if found.rebuilding is None or found.rebuilding.done():
            found.rebuilding = asyncio.create_task(self._rebuild(found))
        return await asyncio.shield(found.rebuilding)

    async def _rebuild(self, found: ExternalSession) -> LiveSession:
        stored = found.stored
        template = await self._templates.get(stored.tokenizer)
        proof = await self._templates.proof(stored.tokenizer, found.request.tool_parser)
        calls = await self._store.calls(found.instance)
        # Only the id of the endpoint is known. The first call chooses: this endpoint if it is ready, else another.
        endpoint = Endpoint(
            id=stored.progress.endpoint, url="", model=stored.model, weights_version="", tokenizer=stored.tokenizer
        )
        live = self._make_live(found, endpoint, template, proof)

        def restore() -> None:
            live.session.restore((StoredCall.from_bytes(call.body), call.delivered) for call in calls)

        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, restore)
        except (TaskError, TemplateUnusable) as error:
            raise TemplateUnusable(
                f"session {found.id!r} cannot be rebuilt from its stored calls: {error}; put the files in {stored.tokenizer} "
                "back as they were, or delete the session"
            ) from error
        live.session.truncated = stored.progress.truncated
        live.session.opened_at = int(stored.created_at)
        if not found.open:
            live.session.close()
        found.live = live
        return live

    # background work

    async def run(self) -> None:
        """Remove each session that has been unused for its `idle_seconds`, and store what changed. This loop runs until
        it is cancelled."""
        while True:
            try:
                for id, found in list(self._sessions.items()):
                    idle = found.idle_seconds > found.request.idle_seconds
                    if idle and self._sessions.get(id) is found:
                        await self.drop(id, f"it was not used for {found.request.idle_seconds:g} s")
                await self._note()
            except Unavailable as error:
                log.warning("the state of sessions was not stored this time: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _note(self) -> None:
        """Store the turns delivered since the last time, and now and then the idle times."""
        there = self._sessions.values()
        delivered = [turn for s in there if s.live is not None for turn in s.live.journal.take_delivered()]
        idle: dict[str, float] = {}
        if (now := time.monotonic()) > self._next_idle_note:
            idle, self._next_idle_note = {s.instance: s.idle_seconds for s in there}, now + NOTE_SECONDS
        if idle or delivered:
            await self._store.note(idle, delivered)

    def ask_to_move(self, id: str, endpoint: str, urgent: bool) -> bool:
        """Move a session from its endpoint, and return whether it moves. If `urgent`, only a session with calls in
        flight moves, and these calls continue on another endpoint. Otherwise only a session without calls in flight
        moves."""
        live = self._sessions[id].live
        if live is None:  # its first call chooses an endpoint
            return False
        busy = live.session.in_flight > 0
        if busy is urgent:
            live.policy.leave(in_flight=busy)
        return busy is urgent

    def end_calls(self) -> None:
        """End all calls. The server calls this when it stops. The sessions stay in the store as they are."""
        for found in self._sessions.values():
            if found.live is not None:
                found.live.session.close(unavailable(STOPPING))

    async def shut_down(self) -> None:
        self.end_calls()
        with contextlib.suppress(Unavailable):
            self._next_idle_note = 0.0
            await self._note()
        self._templates.close()
        await self._http.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    # internals

    def _existing(self, id: str, pool: PoolKey, request: SessionRequest) -> ExternalSession | None:
        there = self._sessions.get(id)
        if there is not None and request.tool_parser is None:  # it may have the parser of its pool
            request = evolve(request, tool_parser=there.request.tool_parser)
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
        return sum(s.progress().tokens for s in self._sessions.values()) < MAX_TOKENS

    def _create(
        self,
        id: str,
        pool: PoolKey,
        request: SessionRequest,
        endpoint: Endpoint,
        template: ChatTemplate,
        proof: ToolProof,
        now: float,
    ) -> ExternalSession:
        stored = StoredSession(
            secrets.token_hex(8), id, pool.namespace, pool.name, request.model_dump_json(), now, endpoint.model,
            endpoint.tokenizer, progress=SessionProgress(endpoint=endpoint.id),
        )  # fmt: skip
        made = ExternalSession(request, pool, stored.instance, stored)
        made.live = self._make_live(made, endpoint, template, proof)
        return made

    def _make_live(
        self, found: ExternalSession, endpoint: Endpoint, template: ChatTemplate, proof: ToolProof
    ) -> LiveSession:
        request = found.request
        policy = RoutedSampler(
            found.id,
            found.pool,
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
            tools=proof,
            max_tokens=MAX_SESSION_TOKENS,
            max_at_once=MAX_AT_ONCE,
        )
        journal = StoringJournal(self._store, found.instance, lambda: progress_of(session, policy))
        executor = SerialExecutor(self._threads, LONG_CHARACTERS)
        session = GatewaySession(found.id, template, policy, config, executor, self._byte_budget, journal)
        return LiveSession(session, policy, journal)
