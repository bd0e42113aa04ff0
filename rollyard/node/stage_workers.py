"""The stage workers of a node agent. Each stage works on a limited number of rollouts; further rollouts wait in order
of arrival.

The server requests a width for each stage: the stage's number of workers. A stage grows as soon as there is free
capacity. A stage shrinks as its rollouts leave it; until a rollout leaves, no other stage can use the rollout's worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping

from rollyard.kinds.rollout import STAGES_LAST_FIRST, Stage


class StagePool:
    """The workers and the waiting line of one stage."""

    def __init__(self, limit: int) -> None:
        self.in_flight = 0
        self.limit = limit
        """Greatest number of rollouts in flight. When the limit is lowered, the rollouts in flight continue."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def width(self) -> int:
        """Number of stage workers. If the limit was lowered, workers above the limit count until they are free."""
        return max(self.limit, self.in_flight)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def resize(self, limit: int) -> None:
        self.limit = limit
        self._admit()

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """Wait for a free stage worker, and hold it inside the block."""
        await self._wait_turn()
        try:
            yield
        finally:
            self._leave()

    async def _wait_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):  # if `_admit` has already removed the turn
                    self._waiting.remove(turn)
            else:  # `_admit` gave this turn a worker just before the cancellation
                self._leave()
            raise

    def _leave(self) -> None:
        self.in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.in_flight < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self.in_flight += 1


class StagePools:
    """All three stages with their current and their requested widths."""

    def __init__(self, widths: Mapping[Stage, int]) -> None:
        self._pools = {stage: StagePool(widths[stage]) for stage in Stage}
        self._minimum, self._requested = dict(widths), dict(widths)
        self._capacity = sum(widths.values())

    def __getitem__(self, stage: Stage) -> StagePool:
        return self._pools[stage]

    @property
    def widths(self) -> dict[Stage, int]:
        return {stage: pool.width for stage, pool in self._pools.items()}

    def request(self, widths: Mapping[Stage, int], places: int) -> None:
        """Set the requested widths. A stage keeps at least its width at the start. `places`: limit on the workers of
        all stages together."""
        self._requested = {
            stage: max(widths.get(stage, n), self._minimum[stage]) for stage, n in self._requested.items()
        }
        self._capacity = max(places, sum(self._minimum.values()))

    def apply_requested(self, sandboxes: int) -> None:
        """Move towards the requested widths. Must be called after every start and end of work.

        `sandboxes`: number of rollouts that have not reached EVAL. Each of these rollouts has a sandbox or will have
        one soon. A rollout keeps its sandbox from INIT to the end of RUN, also while it waits for RUN.
        """
        evals = max(self._minimum[Stage.EVAL], self._capacity - sandboxes)
        requested = {**self._requested, Stage.EVAL: min(self._requested[Stage.EVAL], evals)}
        kept = {stage: max(pool.in_flight, min(pool.limit, requested[stage])) for stage, pool in self._pools.items()}
        free = self._capacity - sum(kept.values())
        for stage in STAGES_LAST_FIRST:
            more = max(0, min(requested[stage] - kept[stage], free))
            free -= more
            self._pools[stage].resize(min(kept[stage] + more, requested[stage]))

    def free_capacity(self, sandboxes: int) -> int:
        """Return the number of rollouts that may begin now. INIT may prepare as many sandboxes in advance as it has
        workers, so that RUN has sandboxes ready."""
        return max(0, self._pools[Stage.INIT].limit + self._pools[Stage.RUN].limit - sandboxes)
