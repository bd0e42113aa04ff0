"""One process of the engine after another: the one whose weights are changed or proven, and the one that takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollyard.engine.process.child_process import EngineFailed
from rollyard.engine.process.engine_supervisor import Prepare, Supervisor
from rollyard.engine.proxy.epochs import EpochRelay
from rollyard.engine.weights.engine_control import ControlFailed
from rollyard.engine.weights.source import WeightsSource

POLL_SECONDS = 0.05


class UpdateRefused(Exception):
    """The engine serves as before."""

    def __init__(self, why: str, *, retry: bool = False) -> None:
        super().__init__(why)
        self.retry = retry


class EngineProcess:
    """Of one engine."""

    def __init__(
        self,
        supervisor: Supervisor,
        generations: EpochRelay,
        prepare: Callable[[WeightsSource], Prepare],
        *,
        restarts: bool,
    ) -> None:
        """`restarts`: whether the engine can be started more than once."""
        self.can_restart = restarts
        self.pinned_life = -1
        """Life of the process that is being changed or proven: what it answers counts for no other."""
        self._supervisor = supervisor
        self._generations = generations
        self._prepare = prepare

    def pin(self) -> None:
        """The process that there is now."""
        self.pinned_life = self._supervisor.life

    @property
    def replaced(self) -> bool:
        """Whether another process has come in the place of the one at hand, with what was proven before."""
        return self._supervisor.life != self.pinned_life

    def ensure_current(self) -> None:
        """Raises ControlFailed when it is gone."""
        if self.replaced:
            raise ControlFailed("it ended during the weights update", lost=True)

    def launch_with(self, source: WeightsSource) -> None:
        """Whenever it is started from now on, it is on these weights."""
        self._supervisor.prepare = self._prepare(source)

    async def restart_with(self, source: WeightsSource, or_else: WeightsSource) -> None:
        """A process on these weights is at hand. Raises Refused when it does not come up, and one on `or_else` is there."""
        life = self._supervisor.life
        self._truncate_responses()
        self._supervisor.restart(self._prepare(source), or_else=self._prepare(or_else))
        while self._supervisor.life == life or not self._supervisor.health.ready:
            if self._supervisor.launch_failure:
                raise UpdateRefused(f"LoadFailed: {self._supervisor.launch_failure}")
            await asyncio.sleep(POLL_SECONDS)
        self.pin()

    async def restart_on_proven(self, proven: WeightsSource) -> None:
        """Nobody goes on with what was done to the process at hand. Raises EngineFailed where it cannot be replaced."""
        prepare = self._prepare(proven)
        if self.replaced and self._supervisor.prepare == prepare:
            return
        if not self.can_restart:
            raise EngineFailed("WeightsLost: the update failed in the middle, and the engine cannot be restarted")
        self._truncate_responses()
        await self.restart(proven)

    async def restart(self, source: WeightsSource) -> None:
        """Another process is being started on these weights."""
        life = self._supervisor.life
        self._supervisor.restart(self._prepare(source))
        while True:
            if self._supervisor.life != life:
                return
            await asyncio.sleep(POLL_SECONDS)

    def _truncate_responses(self) -> None:
        self._generations.judge_epoch(proven=False)
        self._generations.truncate_all()
