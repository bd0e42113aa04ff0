"""Random kills of a yard's processes by SIGKILL, at moments and of victims that a seed chooses."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rollyard.core.aio import wait_or_timeout
from tests.support.host_processes import HostProcess, descendants
from tests.support.yard import Yard, kill

VICTIMS = ("server", "node agent", "model server", "engine", "sandbox", "checker")
_WORDS = {
    "node agent": ("node-agent", "--allocation"),
    "model server": ("inference-server",),
    "engine": ("rollyard.engine.embedded",),
    "scripted engine": ("vllm.entrypoints", "--uds"),
    "checker": ("rollyard.tasks.scoring",),
    "environment": ("tasks/environments/driver.py",),
    "library": ("rollyard.tasks.gym",),
}
"""Words in the command line of each kind of process. A model server supervises its engine."""


class Storm:
    """Kills processes as long as its block runs, each kind once in a round. A killed server is started again at once."""

    def __init__(
        self,
        yard: Yard,
        seed: int,
        pause: tuple[float, float],
        *,
        seconds: float = math.inf,
        most: float = math.inf,
        victims: Sequence[str] = VICTIMS,
    ) -> None:
        """`pause`: least and greatest number of seconds between two kills.

        `seconds`, `most`: time and number of kills after which the storm is over.
        """
        self.killed = Counter[str]()
        self.seen: set[HostProcess] = set()
        """Processes that ran below the node agents shortly before a kill, those inside of sandboxes too."""
        self._yard, self._pause, self._victims = yard, pause, victims
        self._ends_at, self._most = time.monotonic() + seconds, most
        self._random = random.Random(seed)
        self._round = list[str]()
        self._left = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._task = self._group.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return once the last killed server serves again. Raises the storm's own error, which also ends the block."""
        assert self._task is not None
        self._left.set()
        await asyncio.wait([self._task])
        await self._group.__aexit__(kind, error, trace)

    @property
    def over(self) -> bool:
        return self.killed.total() >= self._most or time.monotonic() >= self._ends_at

    async def _run(self) -> None:
        while not self.over and not await wait_or_timeout(self._left, self._random.uniform(*self._pause)):
            if not self._round:
                self._round = self._random.sample(self._victims, len(self._victims))
            victim = self._round.pop()
            if await asyncio.to_thread(self._strike, victim):
                self.killed[victim] += 1
            else:
                self._round.insert(0, victim)

    def _strike(self, victim: str) -> bool:
        """Kill one process of this kind; return whether there was one."""
        if victim == "server":
            self._yard.kill()
            self._yard.start()
            return True
        for agent in self._yard.processes("node-agent", "--allocation"):
            self.seen.update(descendants(agent))
        pids = self._yard.sandboxes() if victim == "sandbox" else self._yard.processes(*_WORDS[victim])
        if pids:
            kill(self._random.choice(sorted(pids)))
        return bool(pids)
