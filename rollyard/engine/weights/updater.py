"""Carries out what the server orders about weights, and knows at any moment which ones the engine has proven to serve.

An order is checked before the engine is touched. From then on it ends in one of two ways: the engine has proven the new
weights, or it is started anew on the last ones that it had proven. Whoever kills it finds it back with the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import Literal

import aiohttp

from rollyard.core.aio import Waker, running
from rollyard.core.errors import Invalid
from rollyard.engine.process.child_process import EngineFailed
from rollyard.engine.process.engine_supervisor import Prepare, Supervisor
from rollyard.engine.proxy.reverse_proxy import Door
from rollyard.engine.weights import quiesce
from rollyard.engine.weights.engine_control import ControlFailed, EngineControl
from rollyard.engine.weights.probe_prompt import Proof
from rollyard.engine.weights.restart import LOOK_SECONDS, Refused, Succession
from rollyard.engine.weights.source import Contents, Source, read_contents, read_source, strayed
from rollyard.engine.weights.verification import Proving, Wrong
from rollyard.kinds.engine_spec import ModelSpec
from rollyard.wire.engine import WeightsOrder

log = logging.getLogger(__name__)

Phase = Literal["", "Draining", "Transferring", "Loading", "Probing", "Failed"]
HOLD_SECONDS = 240.0
"""For requests that come while the weights are changed; a client waits 300 s for its first token."""
RETRY_FIRST_SECONDS, RETRY_CAP_SECONDS = 10.0, 600.0
"""Between two looks at files that are not what was ordered: they may still be on their way."""
ATTEMPTS = 3
"""At an order during which the engine dies, and at the proof of an engine that has been started."""


class Weights:
    """Of one engine."""

    def __init__(
        self,
        model: ModelSpec,
        order: WeightsOrder | None,
        supervisor: Supervisor,
        door: Door,
        control: EngineControl,
        prepare: Callable[[Source], Prepare],
        http: aiohttp.ClientSession,
        *,
        restarts: bool = True,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`order`: what to serve from the start. `restarts`: whether the engine can be started more than once.

        `http` goes to the engine; `stopping` says that nobody waits for a folder's checksum any more.
        """
        self.phase: Phase = ""
        self.error = ""
        self.note = ""
        """Why the folder was read where a transfer was ordered."""
        self._model = model
        self._wanted = order
        self._supervisor = supervisor
        self._generations, self._transfer = door.generations, door.transfer
        self._control = control
        self._proving = Proving(http, model.served_name, control)
        self._succession = Succession(supervisor, door.generations, prepare, restarts=restarts)
        self._stopping = stopping
        self._news = Waker()
        self._now: Source | None = None
        self._contents: Contents | None = None
        self._proven_life = -1
        self._patience = 0.0
        self._attempts = 0
        self._failed: WeightsOrder | None = None
        self._retry_at, self._retry_after = math.inf, RETRY_FIRST_SECONDS
        supervisor.life_begun.connect(self._shut)
        self._shut()

    @property
    def proven(self) -> bool:
        """Whether the process that runs has shown that it serves the weights that it should."""
        return self._now is not None and self._proven_life == self._supervisor.life

    @property
    def version(self) -> str:
        return self._now.version if self._now is not None and self.proven else ""

    @property
    def checksum(self) -> str:
        return self._now.checksum if self._now is not None and self.proven else ""

    @property
    def failed_attempt(self) -> int | None:
        """Of the order that `error` is about."""
        return self._failed.attempt if self._failed is not None and self.phase == "Failed" else None

    def _shut(self) -> None:
        self._generations.shut(self._patience)

    def obey(self, order: WeightsOrder | None) -> None:
        """Take an order, which may be the one at hand; it is carried out by `run`.

        None leaves all as it is, except for an engine that has nothing to serve: it need not look for that any more.
        """
        lifted = order is None and self._now is None and self.phase == "Failed"
        if order == self._wanted or (order is None and not lifted):
            return
        self._wanted, self._failed, self._attempts, self.note = order, None, 0, ""
        if self.phase == "Failed":
            self._say("")  # that was about another order
        self._retry_after = RETRY_FIRST_SECONDS
        self._news.wake()

    async def run(self) -> None:
        """Keeps the engine alive with the weights of the last order. Raises EngineFailed."""
        self._now = await self._first()
        self._succession.next_on(self._now)
        async with running(self._supervisor.run()) as engine, running(self._attend()) as attending:
            done, _ = await asyncio.wait({engine, attending}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _first(self, was: Source | None = None) -> Source:
        """What to start with. An order's files may come later; the pool's own model must be there.

        `was`: proven before under its version, which no other content can have.
        """
        while True:
            order = self._wanted
            try:
                source = await asyncio.to_thread(read_source, self._model, order, self._stopping)
                if self._wanted is not order:
                    continue
                if why := self._control.refuses(source):
                    raise Invalid(why)
                if was is not None and source.version == was.version and source.checksum != was.checksum:
                    raise Invalid(was.mismatch(source.checksum))
                with contextlib.suppress(Invalid):  # the engine will say it in words of its own
                    self._contents = await asyncio.to_thread(read_contents, source.folder)
                self._say("")
                self.note = "NoTransfer: it started with the folder" if order is not None and order.transfer else ""
                return source
            except Invalid as error:
                if self._wanted is not order:
                    continue
                if order is None:
                    raise EngineFailed(str(error)) from None
                self._fail(order, str(error), retry=True)
                await self._news.pause(self._retry_after)

    async def _attend(self) -> None:
        """For ever. Raises EngineFailed."""
        while True:
            if self._supervisor.health.ready:
                if not self.proven:
                    await self._prove_start()
                elif (order := self._due()) is not None:
                    await self._carry_out(order)
                elif self.phase == "Failed" and self._is_done():
                    self._say("")  # what failed is not wanted any more
            await self._news.pause(LOOK_SECONDS)

    def _is_done(self) -> bool:
        return self._wanted is None or (self._now is not None and self._now.fulfils(self._wanted))

    def _due(self) -> WeightsOrder | None:
        order = self._wanted
        if order is None or self._is_done():
            return None
        if order == self._failed and asyncio.get_running_loop().time() < self._retry_at:
            return None
        return order

    # one order

    async def _carry_out(self, order: WeightsOrder) -> None:
        self._succession.take()
        try:
            source, contents = await self._checked(order)
        except Refused as refused:
            return self._fail(order, str(refused), retry=refused.retry)
        if not self.proven:
            return None  # it died meanwhile; the order's turn comes when another one has proven what it was started on
        assert self._now is not None
        self._attempts += 1
        try:
            if source.checksum == self._now.checksum and source.adapter is None and self._now.adapter is None:
                return await self._rename(order, source)
            self._patience = HOLD_SECONDS
            self._shut()
            await self._change(order, source, contents)
        except (ControlFailed, Wrong) as error:
            await self._succession.go_back(self._now)
            lost = isinstance(error, ControlFailed) and error.lost
            if not lost or self._attempts >= ATTEMPTS:
                self._fail(order, str(error), retry=False)
        except Refused as refused:
            self._fail(order, str(refused), retry=refused.retry)

    async def _checked(self, order: WeightsOrder) -> tuple[Source, Contents]:
        """Raises Refused, before anything is touched."""
        try:
            source = await asyncio.to_thread(read_source, self._model, order, self._stopping)
            contents = await asyncio.to_thread(read_contents, source.folder)
        except Invalid as error:
            raise Refused(str(error), retry=True) from None
        if why := self._control.refuses(source):
            raise Refused(why)
        if self._contents is not None and (why := self._contents.misfit(contents)):
            raise Refused(why)
        return source, contents

    async def _rename(self, order: WeightsOrder, source: Source) -> None:
        """The same weights under another version: tokens before and after are equally theirs."""
        self.note = "NoTransfer: it already had these weights" if order.transfer else ""
        await self._control.name(source.version)
        self._begin(source)
        self._accept(source, self._contents)

    async def _change(self, order: WeightsOrder, source: Source, contents: Contents) -> None:
        """Raises ControlFailed, Wrong when the engine has been touched in vain, Refused when it serves as before."""
        now = self._now
        assert now is not None
        anew = self._control.cannot_load(source, now, contents)
        if anew and not self._succession.restarts:
            raise Refused(f"NotInPlace: {anew}; an engine that spans nodes cannot be restarted, so it is replaced")
        self.note = self._no_transfer(anew, contents) if order.transfer else ""
        transfers = order.transfer and not self.note
        self._say("Draining")
        await self._stop_requests(order.mode, order.mode == "Pause" and not anew and self._control.keeps(source, now))
        self._succession.still()
        if transfers:
            anew = await self._let_trainer_in(order)
        self._say("Loading")
        if not anew:
            anew = await self._in_place(source, now, contents, moved=transfers and not self.note)
        if anew:
            log.info("restarting the engine for weights %s: %s", source.version, anew)
            await self._succession.start_on(source, or_else=now)
            await self._control.look()
            await self._control.load(source, None)
            self._accept(source, contents, await self._proof(source, started=True), started=True)

    def _no_transfer(self, anew: str, contents: Contents) -> str:
        """Why the trainer cannot move the weights into this process; empty when it can."""
        differs = "" if self._contents is None or self._contents.computes_as(contents) else "config.json differs"
        why = anew or differs or self._control.no_transfer()
        return f"NoTransfer: {why}" if why else ""

    async def _stop_requests(self, mode: str, kept: bool) -> None:
        if kept:
            await quiesce.freeze(self._generations, self._control)
        else:
            await quiesce.end(self._generations, self._control, drain=mode == "Drain", still=self._succession.still)

    async def _let_trainer_in(self, order: WeightsOrder) -> str:
        """Until it has finished, or was given up (`note`). Why the engine must be started anew then, empty when it need not."""
        self._say("Transferring")
        self.note = await self._transfer.finished(lambda: self._given_up(order), LOOK_SECONDS)
        self._say("Loading")
        self._succession.still()
        if not self.note or not self._transfer.begun or self._control.stages:
            return ""
        if not self._succession.restarts:
            raise Wrong(f"{self.note}; an engine that spans nodes cannot be restarted, so it is replaced")
        return self.note

    def _given_up(self, order: WeightsOrder) -> str:
        if self._succession.gone:
            return "TransferLost: the engine ended"
        return "" if self._wanted is order else "TransferLost: the server has started another update"

    async def _in_place(self, source: Source, now: Source, contents: Contents, *, moved: bool) -> str:
        """Why it must be started anew after all; else it has been accepted."""
        if moved:
            await self._control.moved(now)
        else:
            await self._control.load(source, now)
        proof = await self._proof(source, started=False)
        if await self._proving.is_doubtful(source, now, proof):
            anew = "ReloadIgnored: the engine answers with the new weights exactly as before"
            if not self._succession.restarts:
                raise Wrong(anew)
            self.note = anew if moved else self.note
            return anew
        self._accept(source, contents, proof)
        return ""

    # proof

    async def _prove_start(self) -> None:
        """Of a process that has just come up. Raises EngineFailed."""
        assert self._now is not None
        self._succession.take()
        tries = 0
        while not self._succession.gone:
            try:
                await self._control.look()
                await self._control.load(self._now, None)
                if self._succession.at_hand > 1 and (
                    why := await asyncio.to_thread(strayed, self._now, self._stopping)
                ):
                    return await self._start_over(why)
                proof = await self._proof(self._now, started=True)
                return self._accept(self._now, self._contents, proof, started=True)
            except Wrong as error:
                raise EngineFailed(str(error)) from None
            except ControlFailed as error:
                tries += 1
                log.warning("the engine's weights could not be verified: %s", error)
                if tries >= ATTEMPTS and self._supervisor.health.ready:
                    raise EngineFailed(f"ProbeFailed: {error}") from None
                await asyncio.sleep(tries)

    async def _start_over(self, why: str) -> None:
        """With what is ordered now: the engine has come back on other files than it had proven. Raises EngineFailed."""
        log.error("the engine stays closed: %s", why)
        self._say("Failed", why)
        was, self._now = self._now, None
        self._now = await self._first(was)
        await self._succession.replace(self._now)

    async def _proof(self, source: Source, *, started: bool) -> Proof:
        """Lets the engine go on, with all that it says kept back. Raises ControlFailed, Wrong."""
        await self._control.name(source.version)
        self._begin(source)
        if self._control.pauses and not started:
            await self._control.resume()
        if self.phase == "Loading":
            self._say("Probing")
        return await self._proving.proof(source, started=started)

    def _begin(self, source: Source) -> None:
        self._generations.begin("" if self._control.labels else source.version, self._control.fields(source))

    def _accept(
        self, source: Source, contents: Contents | None, proof: Proof | None = None, *, started: bool = False
    ) -> None:
        """Raises ControlFailed when it was another process that has proven them."""
        self._succession.still()
        if proof is not None:
            self._proving.accept(source, proof, started=started)
        self._now, self._contents = source, contents
        self._succession.next_on(source)
        self._proven_life = self._succession.at_hand
        self._patience = 0.0
        self._generations.judge(proven=True)
        self._generations.open()
        if self.phase != "Failed" or self._is_done():
            self._say("")
            log.info("the engine serves weights %s (%s)", source.version, source.checksum)

    def _fail(self, order: WeightsOrder, why: str, *, retry: bool) -> None:
        log.error("weights %s: %s", order.version, why)
        self._failed = order
        self._retry_at = asyncio.get_running_loop().time() + self._retry_after if retry else math.inf
        self._retry_after = min(2 * self._retry_after, RETRY_CAP_SECONDS)
        self._say("Failed", why)
        if self.proven:
            self._generations.open()

    def _say(self, phase: Phase, error: str = "") -> None:
        self.phase, self.error = phase, error
