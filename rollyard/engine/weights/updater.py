"""Carries out the server's weights updates, and knows at any time the weights that the engine has proven to serve.

An update is checked before the engine is touched. Then it ends in one of two ways: the engine has proven the new
weights, or it is restarted on the last proven ones. After a crash the engine is restarted on the same weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable

import aiohttp

from rollyard.core.aio import Waker, running
from rollyard.core.errors import Invalid
from rollyard.engine.process.child_process import EngineFailed
from rollyard.engine.process.engine_supervisor import Prepare, Supervisor
from rollyard.engine.proxy.reverse_proxy import EngineProxy
from rollyard.engine.weights import quiesce
from rollyard.engine.weights.engine_control import ControlFailed, EngineControl
from rollyard.engine.weights.restart import POLL_SECONDS, EngineProcess, UpdateRefused
from rollyard.engine.weights.source import (
    CheckpointInfo,
    WeightsSource,
    changed_on_disk,
    read_checkpoint_info,
    read_source,
)
from rollyard.engine.weights.verification import WeightsProof, WeightsVerifier, WrongWeights
from rollyard.kinds.engine_spec import ModelSpec
from rollyard.wire.engine import WeightsPhase, WeightsReport, WeightsTarget

log = logging.getLogger(__name__)

WAIT_FOR_UPDATE_SECONDS = 240.0
"""Limit for requests that arrive during a change of weights; a client waits 300 s for its first token."""
RETRY_FIRST_SECONDS, RETRY_CAP_SECONDS = 10.0, 600.0
"""Wait between two checks of files that do not match the order: they may still be copied."""
ATTEMPTS = 3
"""Attempts at an update during which the engine dies, and at the proof of an engine that was just started."""


class WeightsUpdater:
    """The weights updates of one engine."""

    def __init__(
        self,
        model: ModelSpec,
        order: WeightsTarget | None,
        supervisor: Supervisor,
        door: EngineProxy,
        control: EngineControl,
        prepare: Callable[[WeightsSource], Prepare],
        http: aiohttp.ClientSession,
        *,
        restarts: bool = True,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`order`: the weights to serve from the start. `restarts`: whether the engine can be started more than once.

        `http` goes to the engine; `stopping` returns True when a folder's checksum is no longer needed.
        """
        self.phase: WeightsPhase = ""
        self.error = ""
        self.note = ""
        """Why the folder was read although a transfer was ordered."""
        self._model = model
        self._target = order
        self._supervisor = supervisor
        self._epochs, self._transfer = door.epochs, door.transfer
        self._control = control
        self._verifier = WeightsVerifier(http, model.served_name, control)
        self._process = EngineProcess(supervisor, door.epochs, prepare, restarts=restarts)
        self._stopping = stopping
        self._target_changed = Waker()
        self._source: WeightsSource | None = None
        self._contents: CheckpointInfo | None = None
        self._proven_life = -1
        self._entry_wait_seconds = 0.0
        self._attempts = 0
        self._failed: WeightsTarget | None = None
        self._retry_at, self._retry_after = math.inf, RETRY_FIRST_SECONDS
        supervisor.life_begun.connect(self._close_entry)
        self._close_entry()

    @property
    def proven(self) -> bool:
        """Whether the running process has proven that it serves the right weights."""
        return self._source is not None and self._proven_life == self._supervisor.life

    @property
    def version(self) -> str:
        return self._source.version if self._source is not None and self.proven else ""

    @property
    def checksum(self) -> str:
        return self._source.checksum if self._source is not None and self.proven else ""

    @property
    def report(self) -> WeightsReport:
        failed = self._failed if self.phase == "Failed" else None  # the order that `error` is about
        return WeightsReport(
            version=self.version,
            checksum=self.checksum,
            phase=self.phase,
            error=self.error,
            attempt=failed.attempt if failed is not None else None,
            note=self.note,
        )

    def _close_entry(self) -> None:
        self._epochs.close_entry(self._entry_wait_seconds)

    def set_target(self, order: WeightsTarget | None) -> None:
        """Set the ordered weights, perhaps the same as before; `run` carries the order out.

        None changes nothing, except for an engine that still waits for its first weights: it stops looking for them.
        """
        lifted = order is None and self._source is None and self.phase == "Failed"
        if order == self._target or (order is None and not lifted):
            return
        self._target, self._failed, self._attempts, self.note = order, None, 0, ""
        if self.phase == "Failed":
            self._set_phase("")  # the phase was about another order
        self._retry_after = RETRY_FIRST_SECONDS
        self._target_changed.wake()

    async def run(self) -> None:
        """Keep the engine alive with the last ordered weights. Raises EngineFailed."""
        self._source = await self._first_source()
        self._process.launch_with(self._source)
        async with running(self._supervisor.run()) as engine, running(self._update_forever()) as attending:
            done, _ = await asyncio.wait({engine, attending}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _first_source(self, was: WeightsSource | None = None) -> WeightsSource:
        """Return the weights to start with. An order's files may come later; the pool's own model must be there.

        `was`: weights proven earlier under the same version, which no other content can have.
        """
        while True:
            order = self._target
            try:
                source = await asyncio.to_thread(read_source, self._model, order, self._stopping)
                if self._target is not order:
                    continue
                if why := self._control.why_unsupported(source):
                    raise Invalid(why)
                if was is not None and source.version == was.version and source.checksum != was.checksum:
                    raise Invalid(was.mismatch_text(source.checksum))
                with contextlib.suppress(Invalid):  # the engine reports the error itself
                    self._contents = await asyncio.to_thread(read_checkpoint_info, source.folder)
                self._set_phase("")
                self.note = "NoTransfer: it started with the folder" if order is not None and order.transfer else ""
                return source
            except Invalid as error:
                if self._target is not order:
                    continue
                if order is None:
                    raise EngineFailed(str(error)) from None
                self._fail(order, str(error), retry=True)
                await self._target_changed.pause(self._retry_after)

    async def _update_forever(self) -> None:
        """Carry out updates for ever. Raises EngineFailed."""
        while True:
            if self._supervisor.health.ready:
                if not self.proven:
                    await self._prove_start()
                elif (order := self._due_order()) is not None:
                    await self._update(order)
                elif self.phase == "Failed" and self._is_done():
                    self._set_phase("")  # the failed order is no longer current
            await self._target_changed.pause(POLL_SECONDS)

    def _is_done(self) -> bool:
        return self._target is None or (self._source is not None and self._source.matches(self._target))

    def _due_order(self) -> WeightsTarget | None:
        order = self._target
        if order is None or self._is_done():
            return None
        if order == self._failed and asyncio.get_running_loop().time() < self._retry_at:
            return None
        return order

    # one order

    async def _update(self, order: WeightsTarget) -> None:
        self._process.pin()
        try:
            source, contents = await self._check_source(order)
        except UpdateRefused as refused:
            return self._fail(order, str(refused), retry=refused.retry)
        if not self.proven:
            return None  # the process died; the order is carried out once another process has proven its start weights
        assert self._source is not None
        self._attempts += 1
        try:
            if source.checksum == self._source.checksum and source.adapter is None and self._source.adapter is None:
                return await self._rename(order, source)
            self._entry_wait_seconds = WAIT_FOR_UPDATE_SECONDS
            self._close_entry()
            await self._change(order, source, contents)
        except (ControlFailed, WrongWeights) as error:
            await self._process.restart_on_proven(self._source)
            lost = isinstance(error, ControlFailed) and error.lost
            if not lost or self._attempts >= ATTEMPTS:
                self._fail(order, str(error), retry=False)
        except UpdateRefused as refused:
            self._fail(order, str(refused), retry=refused.retry)

    async def _check_source(self, order: WeightsTarget) -> tuple[WeightsSource, CheckpointInfo]:
        """Check the order's files. Raises UpdateRefused before anything is touched."""
        try:
            source = await asyncio.to_thread(read_source, self._model, order, self._stopping)
            contents = await asyncio.to_thread(read_checkpoint_info, source.folder)
        except Invalid as error:
            raise UpdateRefused(str(error), retry=True) from None
        if why := self._control.why_unsupported(source):
            raise UpdateRefused(why)
        if self._contents is not None and (why := self._contents.incompatibility(contents)):
            raise UpdateRefused(why)
        return source, contents

    async def _rename(self, order: WeightsTarget, source: WeightsSource) -> None:
        """Give the same weights another version: tokens before and after are equally theirs."""
        self.note = "NoTransfer: it already had these weights" if order.transfer else ""
        await self._control.set_version(source.version)
        self._begin_epoch(source)
        self._accept(source, self._contents)

    async def _change(self, order: WeightsTarget, source: WeightsSource, contents: CheckpointInfo) -> None:
        """Change the weights.

        Raises ControlFailed or WrongWeights when the engine was changed in vain, UpdateRefused when it serves as
        before.
        """
        now = self._source
        assert now is not None
        anew = self._control.why_not_loadable(source, now, contents)
        if anew and not self._process.can_restart:
            raise UpdateRefused(
                f"NotInPlace: {anew}; an engine that spans nodes cannot be restarted, so it is replaced"
            )
        self.note = self._no_transfer(anew, contents) if order.transfer else ""
        transfers = order.transfer and not self.note
        self._set_phase("Draining")
        await self._stop_requests(
            order.mode, order.mode == "Pause" and not anew and self._control.can_keep_requests(source, now)
        )
        self._process.ensure_current()
        if transfers:
            anew = await self._receive_transfer(order)
        self._set_phase("Loading")
        if not anew:
            anew = await self._update_in_place(source, now, contents, moved=transfers and not self.note)
        if anew:
            log.info("restarting the engine for weights %s: %s", source.version, anew)
            await self._process.restart_with(source, or_else=now)
            await self._control.detect()
            await self._control.load(source, None)
            self._accept(source, contents, await self._prove(source, started=True), started=True)

    def _no_transfer(self, anew: str, contents: CheckpointInfo) -> str:
        """Return why the trainer cannot move the weights into this process; empty when it can."""
        differs = "" if self._contents is None or self._contents.same_computation(contents) else "config.json differs"
        why = anew or differs or self._control.why_no_transfer()
        return f"NoTransfer: {why}" if why else ""

    async def _stop_requests(self, mode: str, kept: bool) -> None:
        if kept:
            await quiesce.freeze_requests(self._epochs, self._control)
        else:
            await quiesce.end_requests(
                self._epochs, self._control, drain=mode == "Drain", still=self._process.ensure_current
            )

    async def _receive_transfer(self, order: WeightsTarget) -> str:
        """Receive a transfer until it is finished or abandoned (`note`); return why a restart is needed, empty without
        one."""
        self._set_phase("Transferring")
        self.note = await self._transfer.wait_until_finished(lambda: self._why_abandoned(order), POLL_SECONDS)
        self._set_phase("Loading")
        self._process.ensure_current()
        if not self.note or not self._transfer.begun or self._control.stages_transfers:
            return ""
        if not self._process.can_restart:
            raise WrongWeights(f"{self.note}; an engine that spans nodes cannot be restarted, so it is replaced")
        return self.note

    def _why_abandoned(self, order: WeightsTarget) -> str:
        if self._process.replaced:
            return "TransferLost: the engine ended"
        return "" if self._target is order else "TransferLost: the server has started another update"

    async def _update_in_place(
        self, source: WeightsSource, now: WeightsSource, contents: CheckpointInfo, *, moved: bool
    ) -> str:
        """Update the weights in place; return why a restart is needed, empty when the weights were accepted."""
        if moved:
            await self._control.finish_transfer(now)
        else:
            await self._control.load(source, now)
        proof = await self._prove(source, started=False)
        if await self._verifier.is_unchanged(source, now, proof):
            anew = "ReloadIgnored: the engine answers with the new weights exactly as before"
            if not self._process.can_restart:
                raise WrongWeights(anew)
            self.note = anew if moved else self.note
            return anew
        self._accept(source, contents, proof)
        return ""

    # proof

    async def _prove_start(self) -> None:
        """Prove the weights of a process that was just started. Raises EngineFailed."""
        assert self._source is not None
        self._process.pin()
        tries = 0
        while not self._process.replaced:
            try:
                await self._control.detect()
                await self._control.load(self._source, None)
                if self._process.pinned_life > 1 and (
                    why := await asyncio.to_thread(changed_on_disk, self._source, self._stopping)
                ):
                    return await self._restart_with_target(why)
                proof = await self._prove(self._source, started=True)
                return self._accept(self._source, self._contents, proof, started=True)
            except WrongWeights as error:
                raise EngineFailed(str(error)) from None
            except ControlFailed as error:
                tries += 1
                log.warning("the engine's weights could not be verified: %s", error)
                if tries >= ATTEMPTS and self._supervisor.health.ready:
                    raise EngineFailed(f"ProbeFailed: {error}") from None
                await asyncio.sleep(tries)

    async def _restart_with_target(self, why: str) -> None:
        """Restart on the current order: the engine came back on files other than the proven ones. Raises EngineFailed."""
        log.error("the engine stays closed: %s", why)
        self._set_phase("Failed", why)
        was, self._source = self._source, None
        self._source = await self._first_source(was)
        await self._process.restart(self._source)

    async def _prove(self, source: WeightsSource, *, started: bool) -> WeightsProof:
        """Resume the engine and prove its weights; its output is held back. Raises ControlFailed, WrongWeights."""
        await self._control.set_version(source.version)
        self._begin_epoch(source)
        if self._control.can_pause and not started:
            await self._control.resume()
        if self.phase == "Loading":
            self._set_phase("Probing")
        return await self._verifier.prove(source, started=started)

    def _begin_epoch(self, source: WeightsSource) -> None:
        self._epochs.begin_epoch(
            "" if self._control.labels_tokens else source.version, self._control.request_fields(source)
        )

    def _accept(
        self,
        source: WeightsSource,
        contents: CheckpointInfo | None,
        proof: WeightsProof | None = None,
        *,
        started: bool = False,
    ) -> None:
        """Record the proof. Raises ControlFailed when another process has proven the weights."""
        self._process.ensure_current()
        if proof is not None:
            self._verifier.accept(source, proof, started=started)
        self._source, self._contents = source, contents
        self._process.launch_with(source)
        self._proven_life = self._process.pinned_life
        self._entry_wait_seconds = 0.0
        self._epochs.judge_epoch(proven=True)
        self._epochs.open_entry()
        if self.phase != "Failed" or self._is_done():
            self._set_phase("")
            log.info("the engine serves weights %s (%s)", source.version, source.checksum)

    def _fail(self, order: WeightsTarget, why: str, *, retry: bool) -> None:
        log.error("weights %s: %s", order.version, why)
        self._failed = order
        self._retry_at = asyncio.get_running_loop().time() + self._retry_after if retry else math.inf
        self._retry_after = min(2 * self._retry_after, RETRY_CAP_SECONDS)
        self._set_phase("Failed", why)
        if self.proven:
            self._epochs.open_entry()

    def _set_phase(self, phase: WeightsPhase, error: str = "") -> None:
        self.phase, self.error = phase, error
