"""Draws: an order that is a permutation, a position that neither repeats nor skips, tasks passed over, longest first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.server.batches.draw import (
    MAX_FAULTY,
    PUT_BACK_GROUPS,
    Drawing,
    DrawnTask,
    draw,
    engine_priority,
    is_passed_over,
    longest_first,
    place,
    put_back,
)
from rollyard.store.batch_records import GroupRecord, SeriesRecord, TaskHistory

SERIES = SeriesRecord("default", "d", "digest", "d", 7, 10)


def drawn(series: SeriesRecord, count: int, *, epochs: int | None = None, streak: int = 0) -> Drawing:
    history = TaskHistory(groups=streak, streak=streak)
    found = draw(series, count, lambda index: history, stored=10, epochs=epochs, pass_over=True)
    return replace(found, series=replace(found.series, next_number=series.next_number + len(found.tasks)))


@settings(deadline=None)
@given(st.integers(1, 700), st.integers(-5, 2**40), st.integers(0, 5))
def test_the_order_of_an_epoch_is_a_permutation(tasks: int, seed: int, epoch: int) -> None:
    assert sorted(place(i, tasks, seed, epoch) for i in range(tasks)) == list(range(tasks))


def test_the_order_depends_on_seed_and_epoch_and_never_changes() -> None:
    def order(seed: int | None, epoch: int) -> list[int]:
        return [place(i, 12, seed, epoch) for i in range(12)]

    assert order(None, 0) == list(range(12))
    assert order(0, 0) == [2, 5, 4, 10, 11, 6, 0, 8, 1, 7, 3, 9], "a stored position names the same task for ever"
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


@settings(deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=12), st.integers(1, 3))
def test_draws_of_any_size_give_every_task_once_an_epoch(sizes: list[int], epochs: int) -> None:
    series, tasks = SERIES, list[DrawnTask]()
    for size in [*sizes, 100]:
        found = drawn(series, size, epochs=epochs)
        series, tasks = found.series, [*tasks, *found.tasks]
        assert found.drained == (len(tasks) == 10 * epochs)
    assert Counter((t.epoch, t.index) for t in tasks) == Counter((e, i) for e in range(epochs) for i in range(10))


def test_a_source_that_has_not_delivered_yet_is_waited_for() -> None:
    plugin = replace(SERIES, dataset=None, seed=None, tasks=None)
    first = draw(plugin, 20, lambda index: None, stored=3, epochs=1, pass_over=True)
    assert [t.index for t in first.tasks] == [0, 1, 2]
    assert not first.drained
    rest = draw(replace(first.series, tasks=5), 20, lambda index: None, stored=5, epochs=1, pass_over=True)
    assert [t.index for t in rest.tasks] == [3, 4]
    assert rest.drained


@pytest.mark.parametrize(
    ("streak", "share"), [(0, 0.0), (1, 0.5), (2, 0.75), (4, 0.9375), (6, 1 - 1 / 64), (50, 1 - 1 / 64)]
)
def test_uninformative_tasks_are_passed_over_more_and_more_but_never_for_ever(streak: int, share: float) -> None:
    passed = [is_passed_over(streak, 7, epoch, index) for epoch in range(40) for index in range(100)]
    assert sum(passed) / len(passed) == pytest.approx(share, abs=0.03)
    found = drawn(SERIES, 20, streak=streak)
    assert len(found.tasks) == 20
    assert found.passed_over == found.series.passed_over
    assert (found.passed_over > 0) == (streak > 0)


def test_the_task_of_a_faulty_group_returns_later_and_only_so_often() -> None:
    first = drawn(SERIES, 1)
    series, index = first.series, first.tasks[0].index
    group = GroupRecord("default", "d-g0", "d", 0, "swe", 2, index, 0, 0.0, 0, "b")
    for tries in range(1, MAX_FAULTY):
        series = put_back(series, replace(group, tries=tries - 1))
        (again,) = series.put_back
        assert again.tries == tries
        found = drawn(replace(series, position=0), PUT_BACK_GROUPS * tries + 1)
        assert found.tasks[-1] == DrawnTask(index, 0, tries)
        series = replace(series, put_back=())
    assert put_back(series, replace(group, tries=MAX_FAULTY - 1)) == series


def test_a_drained_source_gives_back_what_was_put_back() -> None:
    series = put_back(replace(SERIES, epoch=1), GroupRecord("default", "g", "d", 0, "swe", 2, 4, 0, 0.0, 0, "b"))
    found = drawn(series, 5, epochs=1)
    assert found.tasks == (DrawnTask(4, 0, 1),)
    assert found.drained


def test_longest_expected_first_and_unknown_ones_at_the_mean() -> None:
    seconds = {0: 1.0, 1: 9.0, 3: 4.0}
    tasks = [DrawnTask(i, 0) for i in range(5)]
    history = {i: TaskHistory(rollouts=2, seconds=s) for i, s in seconds.items()}
    assert [t.index for t in longest_first(tasks, history.get)] == [1, 2, 4, 3, 0]
    assert longest_first(tasks, lambda index: None) == tasks


@pytest.mark.parametrize(
    ("seconds", "priority"), [(None, None), (10.0, 0), (5.0, 50), (20.0, -100), (30.0, -200), (1e6, -1000)]
)
def test_a_task_that_takes_longer_goes_first_in_the_engine_too(seconds: float | None, priority: int | None) -> None:
    history = TaskHistory(rollouts=3, seconds=seconds) if seconds is not None else None
    assert engine_priority(history, 10.0) == priority
