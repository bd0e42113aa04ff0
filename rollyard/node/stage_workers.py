"""The stage workers of a node agent: so many rollouts at once in a stage, the others in line, in order of arrival.

Widths follow what the server asks for. A stage grows as soon as there is a place, and shrinks as its work ends: nothing is
ever stopped for it; until then its places are nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping

from rollyard.kinds.rollout import Stage

STAGES_LAST_FIRST = (Stage.EVAL, Stage.RUN, Stage.INIT)


class StagePool:
    """One stage."""

    def __init__(self, limit: int) -> None:
        self.in_flight = 0
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Nothing new begins here while so many are in flight."""
        return self._limit

    @property
    def width(self) -> int:
        """Stage workers there are: some may still finish what they began before the limit was lowered."""
        return max(self._limit, self.in_flight)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def resize(self, limit: int) -> None:
        self._limit = limit
        self._admit()

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """A stage worker, as soon as one is free."""
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
                with contextlib.suppress(ValueError):  # passed over meanwhile
                    self._waiting.remove(turn)
            else:  # its turn came together with the cancellation
                self._leave()
            raise

    def _leave(self) -> None:
        self.in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.in_flight < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self.in_flight += 1


class StagePools:
    """All three stages, with the widths that they have and those that they should have."""

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
        """From now on, as far as `settle` can: never below the widths at the start, never beyond so many places."""
        self._requested = {
            stage: max(widths.get(stage, n), self._minimum[stage]) for stage, n in self._requested.items()
        }
        self._capacity = max(places, sum(self._minimum.values()))

    def apply_requested(self, sandboxes: int) -> None:
        """Move towards what was asked for, whenever work has moved.

        `sandboxes`: of all rollouts before EVAL. Each has one from INIT to the end of RUN, between the two stages too, or
        will soon.
        """
        evals = max(self._minimum[Stage.EVAL], self._capacity - sandboxes)
        asked = {**self._requested, Stage.EVAL: min(self._requested[Stage.EVAL], evals)}
        kept = {stage: max(pool.in_flight, min(pool.limit, asked[stage])) for stage, pool in self._pools.items()}
        free = self._capacity - sum(kept.values())
        for stage in STAGES_LAST_FIRST:
            more = max(0, min(asked[stage] - kept[stage], free))
            free -= more
            self._pools[stage].resize(min(kept[stage] + more, asked[stage]))

    def free_capacity(self, sandboxes: int) -> int:
        """Rollouts to begin now: INIT works ahead of RUN by its own width, so that RUN never waits for a sandbox."""
        return max(0, self._pools[Stage.INIT].limit + self._pools[Stage.RUN].limit - sandboxes)
