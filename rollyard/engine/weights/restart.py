"""The engine's current process, whose weights are changed or proven, and its replacement by another one."""

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
    """The update was refused; the engine serves as before."""

    def __init__(self, why: str, *, retry: bool = False) -> None:
        super().__init__(why)
        self.retry = retry


class EngineProcess:
    """The processes of one engine, one after another."""

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
        """Number of the process that is being changed or proven; answers of other processes do not count for it."""
        self._supervisor = supervisor
        self._generations = generations
        self._prepare = prepare

    def pin(self) -> None:
        """Pin the current process."""
        self.pinned_life = self._supervisor.life

    @property
    def replaced(self) -> bool:
        """Return whether another process, on the proven weights, has replaced the pinned one."""
        return self._supervisor.life != self.pinned_life

    def ensure_current(self) -> None:
        """Raise ControlFailed when the pinned process is gone."""
        if self.replaced:
            raise ControlFailed("it ended during the weights update", lost=True)

    def launch_with(self, source: WeightsSource) -> None:
        """Start the engine on these weights from now on."""
        self._supervisor.prepare = self._prepare(source)

    async def restart_with(self, source: WeightsSource, or_else: WeightsSource) -> None:
        """Restart on these weights and pin the process. Raises UpdateRefused when it fails and one on `or_else` is
        running."""
        life = self._supervisor.life
        self._truncate_responses()
        self._supervisor.restart(self._prepare(source), or_else=self._prepare(or_else))
        while self._supervisor.life == life or not self._supervisor.health.ready:
            if self._supervisor.launch_failure:
                raise UpdateRefused(f"LoadFailed: {self._supervisor.launch_failure}")
            await asyncio.sleep(POLL_SECONDS)
        self.pin()

    async def restart_on_proven(self, proven: WeightsSource) -> None:
        """Restart on the proven weights and discard the changed process. Raises EngineFailed when it cannot be replaced."""
        prepare = self._prepare(proven)
        if self.replaced and self._supervisor.prepare == prepare:
            return
        if not self.can_restart:
            raise EngineFailed("WeightsLost: the update failed in the middle, and the engine cannot be restarted")
        self._truncate_responses()
        await self.restart(proven)

    async def restart(self, source: WeightsSource) -> None:
        """Start another process on these weights."""
        life = self._supervisor.life
        self._supervisor.restart(self._prepare(source))
        while True:
            if self._supervisor.life != life:
                return
            await asyncio.sleep(POLL_SECONDS)

    def _truncate_responses(self) -> None:
        self._generations.judge_epoch(proven=False)
        self._generations.truncate_all()
