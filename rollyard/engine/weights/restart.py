"""One process of the engine after another: the one whose weights are changed or proven, and the one that takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollyard.engine.process.child_process import EngineFailed
from rollyard.engine.process.engine_supervisor import Prepare, Supervisor
from rollyard.engine.proxy.epochs import Generations
from rollyard.engine.weights.engine_control import ControlFailed
from rollyard.engine.weights.source import Source

LOOK_SECONDS = 0.05


class Refused(Exception):
    """The engine serves as before."""

    def __init__(self, why: str, *, retry: bool = False) -> None:
        super().__init__(why)
        self.retry = retry


class Succession:
    """Of one engine."""

    def __init__(
        self, supervisor: Supervisor, generations: Generations, prepare: Callable[[Source], Prepare], *, restarts: bool
    ) -> None:
        """`restarts`: whether the engine can be started more than once."""
        self.restarts = restarts
        self.at_hand = -1
        """Life of the process that is being changed or proven: what it answers counts for no other."""
        self._supervisor = supervisor
        self._generations = generations
        self._prepare = prepare

    def take(self) -> None:
        """The process that there is now."""
        self.at_hand = self._supervisor.life

    @property
    def gone(self) -> bool:
        """Whether another process has come in the place of the one at hand, with what was proven before."""
        return self._supervisor.life != self.at_hand

    def still(self) -> None:
        """Raises ControlFailed when it is gone."""
        if self.gone:
            raise ControlFailed("it ended during the weights update", lost=True)

    def next_on(self, source: Source) -> None:
        """Whenever it is started from now on, it is on these weights."""
        self._supervisor.prepare = self._prepare(source)

    async def start_on(self, source: Source, or_else: Source) -> None:
        """A process on these weights is at hand. Raises Refused when it does not come up, and one on `or_else` is there."""
        life = self._supervisor.life
        self._end_answers()
        self._supervisor.restart(self._prepare(source), or_else=self._prepare(or_else))
        while self._supervisor.life == life or not self._supervisor.health.ready:
            if self._supervisor.refused:
                raise Refused(f"LoadFailed: {self._supervisor.refused}")
            await asyncio.sleep(LOOK_SECONDS)
        self.take()

    async def go_back(self, proven: Source) -> None:
        """Nobody goes on with what was done to the process at hand. Raises EngineFailed where it cannot be replaced."""
        prepare = self._prepare(proven)
        if self.gone and self._supervisor.prepare == prepare:
            return
        if not self.restarts:
            raise EngineFailed("WeightsLost: the update failed in the middle, and the engine cannot be restarted")
        self._end_answers()
        await self.replace(proven)

    async def replace(self, source: Source) -> None:
        """Another process is being started on these weights."""
        life = self._supervisor.life
        self._supervisor.restart(self._prepare(source))
        while True:
            if self._supervisor.life != life:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _end_answers(self) -> None:
        self._generations.judge(proven=False)
        self._generations.cut()
