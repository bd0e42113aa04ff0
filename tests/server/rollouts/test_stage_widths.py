"""Widths of the stages: towards the queue, within an allocation's places, and never to and fro."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import Stages
from rollyard.server.rollouts.stage_widths import (
    HOLD_SECONDS,
    History,
    StageLoad,
    initial,
    next_change_at,
    plan_widths,
    share_of_queue,
)

INIT, RUN, EVAL = Stage
Widths = dict[Stage, int]


def stages_of(**workers: tuple[int, int]) -> Stages:
    bounds = {word: {"workers": {"min": low, "max": high}} for word, (low, high) in workers.items()}
    return Stages.model_validate(bounds)


def least(stages: Stages) -> Widths:
    return {stage: getattr(stages, stage.lower()).workers.min for stage in Stage}


STAGES = stages_of(init=(2, 8), run=(4, 16), eval=(2, 8))
PLACES = 20
NOTHING = StageLoad({}, {})


class Allocation:
    """One, over time."""

    def __init__(self, stages: Stages = STAGES, places: int = PLACES) -> None:
        self.stages, self.places = stages, places
        self.history: History = initial(least(stages))
        self.now = 0.0

    def after(self, seconds: float, load: StageLoad) -> Widths:
        self.now += seconds
        self.history, widths = plan_widths(self.history, load, self.stages, self.places, self.now)
        assert widths is not None
        return widths


counts = st.integers(0, 40)
bounds = st.tuples(st.integers(1, 8), st.integers(0, 16)).map(lambda pair: (pair[0], pair[0] + pair[1]))
any_stages = st.builds(stages_of, init=bounds, run=bounds, eval=bounds)
loads = st.builds(
    StageLoad,
    st.fixed_dictionaries({}, optional=dict.fromkeys(Stage, counts)),
    st.fixed_dictionaries({}, optional={INIT: counts, EVAL: counts}),
)
steps = st.lists(st.tuples(st.floats(0, 2 * HOLD_SECONDS), loads), min_size=1, max_size=20)


@given(any_stages, st.integers(0, 40), steps)
def test_widths_stay_between_min_and_max_and_within_the_places(
    stages: Stages, spare: int, steps: Sequence[tuple[float, StageLoad]]
) -> None:
    allocation = Allocation(stages, sum(least(stages).values()) + spare)
    for seconds, load in steps:
        widths = allocation.after(seconds, load)
        for stage in Stage:
            workers = getattr(stages, stage.lower()).workers
            assert workers.min <= widths[stage] <= workers.max
        assert sum(widths.values()) <= allocation.places


@given(any_stages, st.integers(0, 40), steps)
def test_no_place_is_idle_while_a_stage_that_is_not_behind_another_could_use_it(
    stages: Stages, spare: int, steps: Sequence[tuple[float, StageLoad]]
) -> None:
    allocation = Allocation(stages, sum(least(stages).values()) + spare)
    for seconds, load in steps:
        widths = allocation.after(seconds, load)
        if sum(widths.values()) < allocation.places:
            for stage in (RUN, EVAL):
                assert widths[stage] >= min(load.of(stage), getattr(stages, stage.lower()).workers.max)


@given(any_stages, st.integers(0, 40), steps, loads)
def test_a_load_that_stays_settles_within_the_hold(
    stages: Stages, spare: int, steps: Sequence[tuple[float, StageLoad]], load: StageLoad
) -> None:
    allocation = Allocation(stages, sum(least(stages).values()) + spare)
    for seconds, before in steps:
        allocation.after(seconds, before)
    allocation.after(0.1, load)
    settled = allocation.after(HOLD_SECONDS, load)
    assert next_change_at(allocation.history) is None, "nothing is left that would change them by itself"
    assert all(allocation.after(seconds, load) == settled for seconds in (0.0, 1.0, 100.0))


@given(any_stages, st.integers(0, 40), steps)
def test_with_nothing_to_do_every_stage_comes_back_to_its_min(
    stages: Stages, spare: int, steps: Sequence[tuple[float, StageLoad]]
) -> None:
    allocation = Allocation(stages, sum(least(stages).values()) + spare)
    for seconds, load in steps:
        allocation.after(seconds, load)
    allocation.after(0.1, NOTHING)
    assert allocation.after(HOLD_SECONDS, NOTHING) == least(stages)


@given(any_stages, st.integers(0, 40), st.lists(loads, min_size=2, max_size=4), st.floats(0.1, HOLD_SECONDS * 0.9))
def test_what_comes_and_goes_within_the_hold_moves_the_last_stages_once(
    stages: Stages, spare: int, cycle: Sequence[StageLoad], period: float
) -> None:
    """RUN and EVAL grow to what the worst moment of the cycle needs, and stay there."""
    allocation = Allocation(stages, sum(least(stages).values()) + spare)
    seen = [allocation.after(period / len(cycle), load) for _ in range(6) for load in cycle]
    for stage in (RUN, EVAL):
        turns = [b[stage] - a[stage] for a, b in pairwise(seen[len(cycle) :]) if a[stage] != b[stage]]
        assert not turns


def test_each_stage_in_turn_gets_what_the_idle_ones_do_not_need() -> None:
    allocation = Allocation()
    assert allocation.after(0.0, StageLoad({}, {INIT: 60})) == {INIT: 8, RUN: 4, EVAL: 2}
    assert allocation.after(1.0, StageLoad({INIT: 2, RUN: 30}, {INIT: 28})) == {INIT: 2, RUN: 16, EVAL: 2}
    assert allocation.after(60.0, StageLoad({RUN: 4, EVAL: 30}, {})) == {INIT: 2, RUN: 10, EVAL: 8}, (
        "RUN is kept a while"
    )
    assert allocation.after(HOLD_SECONDS, StageLoad({EVAL: 30}, {})) == {INIT: 2, RUN: 4, EVAL: 8}
    assert allocation.after(60.0, NOTHING) == {INIT: 2, RUN: 4, EVAL: 8}
    assert allocation.after(HOLD_SECONDS, NOTHING) == {INIT: 2, RUN: 4, EVAL: 2}


def test_what_is_nearest_to_its_result_comes_first() -> None:
    allocation = Allocation()
    assert allocation.after(0.0, StageLoad(dict.fromkeys(Stage, 50), {INIT: 50})) == {INIT: 2, RUN: 10, EVAL: 8}


def test_init_makes_no_more_sandboxes_than_run_can_take() -> None:
    stages = stages_of(init=(1, 16), run=(4, 4), eval=(1, 1))
    allocation = Allocation(stages)
    assert allocation.after(0.0, StageLoad({RUN: 1}, {INIT: 60}))[INIT] == 4
    full = allocation.after(0.0, StageLoad({RUN: 6}, {INIT: 60}))
    assert full[INIT] == 4, "kept for a while"
    assert allocation.after(HOLD_SECONDS, StageLoad({RUN: 6}, {INIT: 60}))[INIT] == 1


def test_slow_sandboxes_get_the_room_while_run_starves() -> None:
    allocation = Allocation(stages_of(init=(1, 16), run=(1, 16), eval=(1, 4)), 16)
    assert allocation.after(0.0, StageLoad({INIT: 12, RUN: 2}, {INIT: 60})) == {INIT: 13, RUN: 2, EVAL: 1}


def test_an_allocation_that_is_new_here_keeps_what_it_has_for_a_while() -> None:
    """As after a restart of the server, which cannot know what it needed a second ago."""
    allocation = Allocation()
    allocation.history = initial({INIT: 2, RUN: 12, EVAL: 4})
    assert allocation.after(0.0, NOTHING) == {INIT: 2, RUN: 12, EVAL: 4}
    assert next_change_at(allocation.history) == HOLD_SECONDS
    assert allocation.after(HOLD_SECONDS, NOTHING) == {INIT: 2, RUN: 4, EVAL: 2}


def test_an_allocation_too_small_for_the_smallest_widths_is_left_alone() -> None:
    history = initial({})
    assert plan_widths(history, NOTHING, STAGES, 7, 0.0) == (history, None)


def test_the_queue_is_shared_out_and_none_of_it_is_forgotten() -> None:
    assert share_of_queue({INIT: 7, EVAL: 1}, 3) == {INIT: 3, EVAL: 1}
    assert share_of_queue({INIT: 7}, 0) == {}
