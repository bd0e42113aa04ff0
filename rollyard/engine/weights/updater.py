"""Carries out the commands of `update_step` at one engine, and passes the outcomes to `next_step`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aiohttp

from rollyard.core.aio import Waker, running, wait_or_timeout
from rollyard.core.errors import Invalid
from rollyard.engine.process.child_process import EngineFailed
from rollyard.engine.process.engine_supervisor import Prepare, Supervisor
from rollyard.engine.proxy.reverse_proxy import EngineProxy
from rollyard.engine.weights.engine_control import ControlFailed, EngineControl
from rollyard.engine.weights.folder_reading import changed_on_disk, read_weights
from rollyard.engine.weights.source import WeightsSource
from rollyard.engine.weights.update_step import (
    LOST,
    CarriedOut,
    Checkpoint,
    Command,
    Fact,
    Failed,
    FilesRead,
    Observed,
    ProcessBegan,
    TargetSet,
    UpdateState,
    next_step,
)
from rollyard.engine.weights.verification import WeightsVerifier, WrongWeights
from rollyard.kinds.base import Reason
from rollyard.kinds.engine_spec import ModelSpec
from rollyard.wire.engine import WeightsReport, WeightsTarget

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
DRAIN_SECONDS = 600.0
"""Limit for running requests to end. Requests that still run after this time are aborted."""
ABORT_SECONDS = 5.0
READ_SECONDS = 60.0
OTHER_WEIGHTS_SECONDS = 30.0
"""Time that the server has to name other weights after the engine could not be started on those of an update. Then the
allocation ends, and its pool makes another."""
NODE_FAULTS = ("EngineMissing", "EngineTooOld")
"""Reasons that say nothing about the weights."""


class WeightsUpdater:
    """Updates the weights of one engine."""

    def __init__(
        self,
        model: ModelSpec,
        target: WeightsTarget | None,
        supervisor: Supervisor,
        proxy: EngineProxy,
        control: EngineControl,
        prepare: Callable[[WeightsSource], Prepare],
        http: aiohttp.ClientSession,
        *,
        restarts: bool = True,
    ) -> None:
        """`target`: the weights to serve from the start. `restarts`: whether the engine can be started more than once.

        `http`: sends calls to the engine.
        """
        self._state = UpdateState(target, can_restart=restarts)
        self._model = model
        self._supervisor = supervisor
        self._epochs, self._transfer = proxy.epochs, proxy.transfer
        self._control = control
        self._verifier = WeightsVerifier(http, model.served_name, control)
        self._prepare = prepare
        self._target_changed = Waker()
        self._launched = asyncio.Event()
        self._start_failure = ""
        """Reason why the engine could not be started on an update's weights, until `next_step` knows it."""
        supervisor.life_begun.connect(lambda: self._step(ProcessBegan(supervisor.life)))
        self._epochs.close_entry(0.0)

    @property
    def proven(self) -> bool:
        """Whether the running process has proven that it serves the right weights."""
        return self._state.proven

    @property
    def report(self) -> WeightsReport:
        return self._state.report

    def set_target(self, target: WeightsTarget | None) -> None:
        """Set the weights to serve, perhaps the same as before. `run` then updates the engine."""
        self._step(TargetSet(target))
        self._target_changed.wake()

    async def run(self) -> None:
        """Keep the engine running, and update its weights to the target. Raises EngineFailed."""
        async with running(self._run_engine()) as engine, running(self._update_forever()) as attending:
            done, _ = await asyncio.wait({engine, attending}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _run_engine(self) -> None:
        """Run the engine for ever. If it cannot be started on an update's weights, the server may name others. Raises
        EngineFailed."""
        while True:
            await self._launched.wait()
            try:
                await self._supervisor.run()
            except EngineFailed as failed:
                if failed.why.word in NODE_FAULTS or not self._state.starts_on_target:
                    raise
                self._launched.clear()
                self._start_failure = f"LoadFailed: {failed.why.message}"
                if not await wait_or_timeout(self._launched, OTHER_WEIGHTS_SECONDS):
                    raise

    async def _update_forever(self) -> None:
        """Carry out updates for ever. Raises EngineFailed."""
        while True:
            if self._start_failure:
                self._step(Failed("NotStarted", self._start_failure))
                self._start_failure = ""
            work = self._step(Observed(asyncio.get_running_loop().time(), self._supervisor.health.ready))
            while work is not None:
                outcome = await self._outcome(work)
                work = self._step(outcome) if outcome is not None else None
            await self._target_changed.pause(POLL_SECONDS)

    def _step(self, fact: Fact) -> Command | None:
        """Pass a fact to `next_step`. Carry out the resulting commands that need no wait. Return the command that needs
        a wait, if there is one. Raises EngineFailed."""
        before, work = self._state, None
        self._state, commands = next_step(before, fact)
        if self._state.error not in ("", before.error):
            log.error("the weights: %s", self._state.error)
        for command in commands:
            match command:
                case "CloseEntry":
                    self._epochs.close_entry(self._state.entry_wait_seconds)
                case "Accept":
                    self._accept(self._state.at_work.source)
                case "GiveUp":
                    raise EngineFailed(Reason.parse(self._state.fatal))
                case _:
                    work = command
        return work

    async def _outcome(self, command: Command) -> Fact | None:
        """Carry out a command and return its outcome; None for Pause."""
        state = self._state
        try:
            match command:
                case "Read":
                    return await self._read(state)
                case "Receive":
                    return await self._receive_transfer()
                case "Load":
                    return await self._load(state)
                case "Prove":
                    return await self._prove(state)
                case "Restart":
                    return await self._restart(state)
                case "Rename":
                    await self._begin_epoch(state.at_work.source)
                case "Stop":
                    await self._stop_requests(state)
                case "Pause":
                    await asyncio.sleep(len(state.broken_proofs))
                    return None
        except ControlFailed as error:
            log.warning("the weights: %s failed: %s", command, error)
            return Failed("Lost" if error.lost else "Broke", str(error))
        except WrongWeights as error:
            return Failed("Wrong", str(error))
        return CarriedOut()

    async def _read(self, state: UpdateState) -> Fact:
        """Read the target's files, and ask the engine's control what the current process can do with them. Another target
        ends the reading."""
        control, served, loop = self._control, state.served, asyncio.get_running_loop()
        async with running(read_weights(Path(self._model.path), state.tried, needs_info=served is not None)) as reading:
            while not reading.done():
                if self._state.target != state.tried:
                    return Failed("Replaced", "the server has started another update")
                await asyncio.wait({reading}, timeout=POLL_SECONDS)
            try:
                source, info = reading.result()
            except Invalid as error:
                return Failed("Refused", str(error), loop.time())
        read = FilesRead(loop.time(), Checkpoint(source, info), control.why_unsupported(source))
        if served is None or info is None:
            return read
        return replace(
            read,
            why_not_loadable=control.why_not_loadable(source, served.source, info),
            why_no_transfer=control.why_no_transfer(),
            can_keep_requests=control.can_keep_requests(source, served.source),
        )

    async def _stop_requests(self, state: UpdateState) -> None:
        """Stop the running requests before the weights change. The mode of the update decides how."""
        if state.change is not None and state.change.keep_requests:
            await self._freeze_requests()
        else:
            await self._end_requests(drain=state.tried is not None and state.tried.mode == "Drain")

    async def _freeze_requests(self) -> None:
        """Pause the engine and keep its running requests. Return when all output has been read. Raises ControlFailed."""
        await self._control.pause("keep")
        if not self._control.labels_tokens:
            self._epochs.repeat_unanswered()
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._epochs.wait_until_read(self._control.round_trip)
        except TimeoutError:
            raise ControlFailed(f"the engine did not stop within {READ_SECONDS:g} s after a pause") from None

    async def _end_requests(self, *, drain: bool) -> None:
        """End all running requests. Requests without an answer are repeated later. `drain`: first wait for requests to
        end by themselves. Raises ControlFailed."""
        if drain:
            await self._epochs.wait_until_idle(DRAIN_SECONDS)
            if self._state.replaced:
                raise ControlFailed(LOST.why, lost=True)
        if self._control.can_pause:
            await self._control.pause("abort")
            await self._epochs.wait_until_idle(ABORT_SECONDS)
        self._epochs.truncate_all()
        await self._epochs.wait_until_idle(ABORT_SECONDS)

    async def _receive_transfer(self) -> Fact:
        transfer = self._transfer
        why = await transfer.wait_until_finished(lambda: self._state.why_transfer_ends, POLL_SECONDS)
        spoiled = transfer.begun and not self._control.buffers_transfers
        return Failed("TransferSpoiled" if spoiled else "TransferLost", why) if why else CarriedOut()

    async def _load(self, state: UpdateState) -> Fact:
        source, before = state.at_work.source, state.before
        if before is None:
            await self._control.detect()
        if before is not None and state.changes_by("Transfer"):
            await self._control.finish_transfer(before)
        else:
            await self._control.load(source, before)
        came_back = state.change is None and state.life > 1
        if came_back and (why := await changed_on_disk(source)):
            return Failed("FilesChanged", why)
        return CarriedOut()

    async def _prove(self, state: UpdateState) -> CarriedOut:
        """Resume the engine and prove its weights. The proxy holds back the engine's output until the weights are
        accepted."""
        source, before = state.at_work.source, state.before
        await self._begin_epoch(source)
        if self._control.can_pause and before is not None:
            await self._control.resume()
        return CarriedOut(await self._verifier.prove(source, before))

    async def _begin_epoch(self, source: WeightsSource) -> None:
        await self._control.set_version(source.version)
        version = "" if self._control.labels_tokens else source.version
        self._epochs.begin_epoch(version, self._control.request_fields(source))

    def _accept(self, source: WeightsSource) -> None:
        self._verifier.accept()
        self._supervisor.prepare = self._prepare(source)
        self._epochs.judge_epoch(proven=True)
        self._epochs.open_entry()
        log.info("the engine serves weights %s (%s)", source.version, source.checksum)

    async def _restart(self, state: UpdateState) -> Fact:
        """End the process and start another. If the other does not get ready on new weights, start a process on the old
        weights."""
        supervisor, source = self._supervisor, state.at_work.source
        or_else = self._prepare(state.served.source) if state.changes_by("Restart") and state.served else None
        log.info("starting the engine on weights %s", source.version)
        self._epochs.judge_epoch(proven=False)
        self._epochs.truncate_all()
        life = supervisor.life
        supervisor.restart(self._prepare(source), or_else)
        self._launched.set()
        while supervisor.life == life or (or_else is not None and not supervisor.health.ready):
            if supervisor.launch_failure:
                return Failed("Refused", supervisor.launch_failure)
            await asyncio.sleep(POLL_SECONDS)
        return CarriedOut()
