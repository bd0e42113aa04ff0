"""The bench of batches in short: what must hold for the server's decisions. Time is simulated, and each run has a seed."""

from __future__ import annotations

from functools import cache

import pytest

from bench.dynamic_sampling import CARRY, DISCARD, PASS, PLAIN, figures, stream_figures
from simulation.batches import Figures, Load, Tasks, request, run_stream

LOAD = Load("short", 64, 1.0, 0.6, (0.35, 0.35), tasks=250, target=16)
SEED, BATCHES = 1, 30


@cache
def found(rule: str) -> Figures:
    return figures(LOAD, rule, SEED, BATCHES)


@cache
def stream(bound: int) -> Figures:
    return stream_figures(LOAD, bound, SEED, steps=20)


def test_carried_batches_take_the_time_of_the_floor() -> None:
    assert found(CARRY).busy > 0.999
    assert found(CARRY).seconds <= 1.05 * Tasks(LOAD, SEED).floor
    assert found(PLAIN).seconds >= 2.5 * found(CARRY).seconds


def test_passing_over_saves_time_again() -> None:
    assert found(CARRY).seconds >= 1.15 * found(PASS).seconds
    assert found(PASS).wasted < found(CARRY).wasted < found(DISCARD).wasted


@pytest.mark.parametrize("rule", [CARRY, PASS])
def test_slow_groups_are_delivered_as_often_as_fast_ones(rule: str) -> None:
    assert found(rule).bias == pytest.approx(1.0, abs=0.05)
    assert found(rule).reported_bias == pytest.approx(1.0, abs=0.02)


def test_discarding_prefers_fast_groups_and_the_server_reports_it() -> None:
    assert 0.3 <= found(DISCARD).bias <= 0.7
    assert found(DISCARD).reported_bias == pytest.approx(found(DISCARD).bias, abs=0.15)
    assert found(DISCARD).staleness == 0


def test_a_stream_trades_staleness_for_idle_time_and_throws_nothing_away() -> None:
    assert stream(0).staleness < 0.2  # more groups than expected were informative; the next step uses the rest
    assert stream(0).idle > stream(1).idle > stream(4).idle
    for bound in (1, 4):
        assert stream(bound).over < 0.2
        assert 0 < stream(bound).staleness < bound + 0.1  # a slow group, which others overtake, may be staler
        assert stream(bound).bias == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("bound", [0, 1, 2, 4])
def test_no_group_is_staler_than_the_bound_if_none_overtakes_another(bound: int) -> None:
    even = Load("even", 64, 0.0, 0.0, (0.35, 0.35), tasks=250, target=16)
    asked = request(even, step_groups=even.target, max_staleness=bound, filter={"kind": "none"})
    found = run_stream(Tasks(even, SEED), asked, Tasks(even, SEED).floor, 12, 4)
    assert found.stalest == bound


def test_the_same_seed_gives_the_same_figures() -> None:
    short = Load("tiny", 16, 0.7, 0.4, (0.5, 0.5), tasks=40, target=4)
    assert figures(short, PASS, 3, 6) == figures(short, PASS, 3, 6)
