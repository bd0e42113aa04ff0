"""A registered engine: it serves, reports its state to the server, and follows the server's orders, until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from rollyard.core.aio import running, wait_or_timeout
from rollyard.core.errors import ApiError, Fenced, Incompatible
from rollyard.core.exit_codes import LASTING_EXIT
from rollyard.engine.end_request import EndRequest
from rollyard.engine.gang.rendezvous import Gang
from rollyard.engine.launch.template_check import check_template
from rollyard.engine.process.child_process import EngineFailed
from rollyard.engine.process.engine_supervisor import EngineHealth, Supervisor
from rollyard.engine.proxy.reverse_proxy import EngineProxy
from rollyard.engine.registration import Registration
from rollyard.engine.weights.updater import DRAIN_SECONDS, WeightsUpdater
from rollyard.kinds.base import Reason
from rollyard.kinds.engine_spec import ModelSpec
from rollyard.wire.engine import EngineHeartbeat, EngineOrders, token_digest
from rollyard.wire.tool_proof import ToolProof

log = logging.getLogger(__name__)

_LASTING = ("ModelMissing", "TemplateUnusable", "EngineMissing", "EngineTooOld")
"""Reasons that stay until somebody changes something on the nodes or in the pool."""

FINISH_POLL_SECONDS = 0.2
SHARED_SIGNAL_SECONDS = 0.5


class RegisteredEngine:
    def __init__(
        self,
        registration: Registration,
        model: ModelSpec,
        supervisor: Supervisor,
        weights: WeightsUpdater,
        proxy: EngineProxy,
        end: EndRequest,
        gang: Gang | None,
    ) -> None:
        self._registration = registration
        self._model = model
        self._supervisor = supervisor
        self._weights = weights
        self._proxy = proxy
        self._end = end
        self._gang = gang
        self._fatal: Reason | None = None
        self._template_checked = False
        self._tools: ToolProof | None = None

    async def serve(self, seconds: float) -> int:
        """Run the engine and a heartbeat every `seconds` until one of them ends or the end is requested. Return the exit
        status. Raises Fenced, Incompatible."""
        async with (
            running(self._engine()) as engine,
            running(self._beat(seconds)) as beat,
            running(self._end.made.wait()) as end,
        ):
            try:
                await asyncio.wait({engine, beat, end}, return_when=asyncio.FIRST_COMPLETED)
                if beat.done():
                    beat.result()  # raises Fenced or Incompatible
                # The signal that ended the engine may have been sent to the whole job, and reach this process later.
                if engine.done() and not await wait_or_timeout(self._end.made, SHARED_SIGNAL_SECONDS):
                    # The reason must reach the server before the job ends.
                    self._fatal = _reason(engine.exception())
                    log.critical("%s", self._fatal)
                    with contextlib.suppress(ApiError):
                        await self._report()
                    return LASTING_EXIT if self._fatal.word in _LASTING else 1
                await self._finish()
                if self._gang is not None:
                    self._gang.leave()  # before the engine ends: the other ranks must not take its end for a failure
                return 0
            finally:
                self._proxy.ending = True

    async def _engine(self) -> None:
        """Run the engine for ever, and check the chat template during its start. Raises EngineFailed."""
        async with running(self._weights.run()) as engine, running(check_template(self._model)) as check:
            await asyncio.wait({engine, check}, return_when=asyncio.FIRST_COMPLETED)
            if not engine.done():
                self._tools = check.result()
                self._template_checked = True
            await engine

    async def _beat(self, seconds: float) -> None:
        """Report the engine's state every `seconds`, and at once after a change. Run for ever. Raises Fenced,
        Incompatible."""
        sent: EngineHeartbeat | None = None
        due = 0.0
        loop = asyncio.get_running_loop()
        while True:
            beat = self._heartbeat()
            if sent is None or _changes_to_report(beat) != _changes_to_report(sent) or loop.time() >= due:
                try:
                    orders = await self._report()
                    if not orders.known:
                        welcome = await self._registration.register()
                        self._proxy.accept(welcome.token)
                        self._weights.set_target(welcome.weights)
                        continue
                    self._weights.set_target(orders.weights)
                    if orders.tokens:
                        self._proxy.set_tokens(orders.tokens)
                    if orders.drain and not self._end.made.is_set():
                        self._end.end_within(DRAIN_SECONDS)
                    sent, due = beat, loop.time() + seconds
                except (Fenced, Incompatible):
                    raise
                except ApiError as error:
                    log.warning("the server did not get the heartbeat: %s", error)
                    sent, due = beat, loop.time() + seconds / 2
            await asyncio.sleep(0.1)

    async def _report(self) -> EngineOrders:
        return await self._registration.report(self._heartbeat())

    def _heartbeat(self) -> EngineHeartbeat:
        health = self._health()
        return EngineHeartbeat(
            identity=self._registration.identity,
            url=self._registration.url,
            ready=health.ready,
            reason=health.reason,
            weights=self._weights.report,
            running=health.running,
            waiting=health.waiting,
            kv_usage=health.kv_usage,
            load=health.load,
            tools=self._tools,
            context=health.context,
            token=token_digest(self._proxy.token),
        )

    def _health(self) -> EngineHealth:
        health = self._supervisor.health
        if self._fatal:
            return EngineHealth(False, self._fatal)
        if self._end.made.is_set():
            # the load is still reported during the drain
            return replace(health, ready=False, reason=Reason("Draining"))
        if health.ready and not self._weights.proven:
            return replace(health, ready=False, reason=Reason("Proving"))
        if health.ready and not self._template_checked:
            return replace(health, ready=False, reason=Reason("CheckingTemplate"))
        if self._supervisor.life == 0 and self._weights.report.error:
            return replace(health, reason=None)  # the report of the weights has the reason
        return health

    async def _finish(self) -> None:
        """Report the drain, so that no new requests come. Wait for the running requests until the deadline."""
        with contextlib.suppress(ApiError):
            await self._report()
        while self._end.seconds_left > 0:  # SIGTERM during a drain makes the deadline earlier
            if await wait_or_timeout(self._proxy.idle, FINISH_POLL_SECONDS):
                return


def _changes_to_report(beat: EngineHeartbeat) -> tuple[object, ...]:
    """Return the fields whose changes are reported to the server at once."""
    return beat.ready, beat.reason, beat.weights, beat.token


def _reason(error: BaseException | None) -> Reason:
    if isinstance(error, EngineFailed):
        return error.why
    log.error("the supervisor failed", exc_info=error)
    return Reason("EngineFailed", f"{type(error).__name__}: {error}")
