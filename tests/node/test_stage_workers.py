"""Stage workers: in line in order, wider at once, narrower as work ends, and never more places than there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.kinds.rollout import Stage
from rollyard.node.stage_workers import StagePool, StagePools

INIT, RUN, EVAL = Stage


class Crew:
    """Tasks that each take a stage worker and keep it until they are told to end."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, pool: StagePool, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._work(pool, name))
        await self.rest()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await self.rest()

    async def _work(self, pool: StagePool, name: str) -> None:
        async with pool.worker():
            self.began.append(name)
            await self._ends[name].wait()

    @staticmethod
    async def rest() -> None:
        """Until nobody has anything to do."""
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    made = Crew()
    yield made
    for task in made.tasks.values():
        task.cancel()
    await asyncio.gather(*made.tasks.values(), return_exceptions=True)


async def test_workers_are_given_in_order_of_arrival(crew: Crew) -> None:
    pool = StagePool(2)
    await crew.start(pool, *"abcde")
    assert (crew.began, pool.in_flight, pool.queued) == (["a", "b"], 2, 3)
    await crew.end("b")
    await crew.end("a", "c")
    assert crew.began == [*"abcde"]


async def test_growing_helps_who_waits_at_once(crew: Crew) -> None:
    pool = StagePool(1)
    await crew.start(pool, *"abc")
    pool.resize(3)
    await crew.rest()
    assert (crew.began, pool.width) == ([*"abc"], 3)


async def test_shrinking_waits_for_work_to_end_and_stops_none(crew: Crew) -> None:
    pool = StagePool(3)
    await crew.start(pool, *"abcd")
    pool.resize(1)
    assert (pool.in_flight, pool.width) == (3, 3)
    await crew.end("a")
    assert (pool.in_flight, pool.width, crew.began) == (2, 2, [*"abc"]), "nobody takes the place that was given back"
    await crew.end("b")
    assert pool.width == 1
    await crew.end("c")
    assert crew.began == [*"abcd"]


async def test_who_leaves_the_line_holds_up_nobody(crew: Crew) -> None:
    pool = StagePool(1)
    await crew.start(pool, *"abc")
    crew.tasks["b"].cancel()
    await crew.rest()
    assert pool.queued == 1
    await crew.end("a")
    assert crew.began == ["a", "c"]


async def test_who_is_cancelled_as_its_turn_comes_passes_it_on(crew: Crew) -> None:
    pool = StagePool(1)
    await crew.start(pool, *"abc")
    pool.resize(2)  # it is b's turn, and b has not run yet
    crew.tasks["b"].cancel()
    await crew.rest()
    assert (crew.began, pool.in_flight, pool.queued) == (["a", "c"], 2, 0)


def pools(init: int = 2, run: int = 4, eval: int = 2) -> StagePools:
    return StagePools({INIT: init, RUN: run, EVAL: eval})


def test_a_stage_that_is_not_named_stays_and_none_goes_below_its_start() -> None:
    made = pools()
    made.request({RUN: 8, EVAL: 1}, 16)
    made.apply_requested(0)
    assert made.widths == {INIT: 2, RUN: 8, EVAL: 2}


async def test_places_are_given_back_before_they_are_given_away(crew: Crew) -> None:
    made = pools()
    made.request({INIT: 2, RUN: 10, EVAL: 2}, 14)
    made.apply_requested(0)
    await crew.start(made[RUN], *"abcdefghij")
    made.request({INIT: 2, RUN: 4, EVAL: 8}, 14)
    made.apply_requested(10)
    assert made.widths == {INIT: 2, RUN: 10, EVAL: 2}
    await crew.end("a", "b", "c")
    made.apply_requested(7)
    assert made.widths == {INIT: 2, RUN: 7, EVAL: 5}
    assert made.free_capacity(7) == 0, "nothing new is begun on the way"
    await crew.end(*"defghij")
    made.apply_requested(0)
    assert made.widths == {INIT: 2, RUN: 4, EVAL: 8}


async def test_a_sandbox_between_init_and_run_keeps_its_place(crew: Crew) -> None:
    """In no stage worker, and yet there."""
    made = pools()
    made.request({INIT: 8, RUN: 4, EVAL: 2}, 14)
    made.apply_requested(0)
    assert made.free_capacity(0) == 12
    made.request({INIT: 2, RUN: 4, EVAL: 8}, 14)
    made.apply_requested(12)
    assert made.widths == {INIT: 2, RUN: 4, EVAL: 2}
    made.apply_requested(9)
    assert made.widths[EVAL] == 5


widths = st.fixed_dictionaries(dict.fromkeys(Stage, st.integers(1, 12)))
asks = st.tuples(widths, st.integers(0, 12))
"""Widths, and places beyond their sum."""
ends = st.integers(0, 100)
"""Which of those in a stage worker ends it."""
GRANT = None


class Line:
    """Rollouts go through the stages while widths are asked for; the server never hands out more than was wanted."""

    def __init__(self) -> None:
        self.pools = pools()
        self.places = sum(self.pools.widths.values())
        self.at: list[Stage] = []
        """The stage of each rollout."""
        self.working: list[asyncio.Event] = []

    @property
    def sandboxes(self) -> int:
        return sum(stage is not EVAL for stage in self.at)

    async def rollout(self, number: int) -> None:
        for stage in Stage:
            self.at[number] = stage
            async with self.pools[stage].worker():
                self.working.append(ended := asyncio.Event())
                await ended.wait()

    def grant(self, tasks: asyncio.TaskGroup) -> None:
        for _ in range(self.pools.free_capacity(self.sandboxes)):
            self.at.append(INIT)
            tasks.create_task(self.rollout(len(self.at) - 1))

    async def settle(self) -> None:
        await Crew.rest()
        busy = {stage: self.pools[stage].in_flight for stage in Stage}
        self.pools.apply_requested(self.sandboxes)
        await Crew.rest()
        assert all(self.pools[stage].in_flight >= n for stage, n in busy.items()), "no work is stopped"
        assert sum(self.pools.widths.values()) <= self.places
        assert self.sandboxes + self.pools[EVAL].in_flight <= self.places

    async def live(self, steps: Sequence[tuple[Mapping[Stage, int], int] | int | None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for step in steps:
                match step:
                    case (dict(widths), more):
                        self.places = max(self.places, sum(widths.values()) + more)
                        self.pools.request(widths, self.places)
                    case int(which) if self.working:
                        self.working.pop(which % len(self.working)).set()
                    case _:
                        self.grant(tasks)
                await self.settle()
            while self.working:
                self.working.pop().set()
                await self.settle()


@settings(deadline=None)
@given(st.lists(st.one_of(asks, ends, st.just(GRANT)), max_size=60))
def test_whatever_is_asked_for_no_work_is_stopped_and_no_place_is_used_twice(
    steps: list[tuple[Mapping[Stage, int], int] | int | None],
) -> None:
    line = Line()
    asyncio.run(line.live(steps))
    assert not any(pool.in_flight or pool.queued for pool in map(line.pools.__getitem__, Stage)), "every rollout ends"
