"""The size of a pool that follows its demand, rule by rule. Each test turns one pool's clock."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.kinds.autoscaling import Autoscaling, ScalingRecord
from rollyard.reconcilers.autoscaler import (
    FLAP_BUDGET,
    FLAP_WINDOW_SECONDS,
    PANIC_SECONDS,
    Metric,
    ScaleDecision,
    ScalerMemory,
    SlidingMax,
    autoscale,
)

START = 1_700_000_000.0
EACH = 4


class Scaled:
    """A pool at its clock; every decision is carried out before the next look."""

    def __init__(self, *, size: int = 0, restarted: bool = False, **bounds: Any) -> None:
        self.bounds = Autoscaling.model_validate({"maxReplicas": 20, "idleTimeoutSeconds": 0, **bounds})
        self.now, self.size = START, size
        self.memory = ScalerMemory.begin(self.now, new=not restarted)
        self.record = ScalingRecord()
        self.last: ScaleDecision | None = None

    def look(self, demand: float | None, *more: Metric, after: float = 0.0) -> int:
        """The size, `after` seconds later, with so much demand; each replica takes four."""
        self.now += after
        metrics = [Metric("queue", demand, EACH), *more]
        found = autoscale(self.bounds, self.memory, self.record, metrics, current=self.size, now=self.now)
        assert found.memory is not None
        self.size, self.memory, self.record, self.last = found.desired, found.memory, found.record, found
        return self.size

    def restart(self) -> None:
        """Restart the server: its memory is lost, the status stays."""
        self.memory = ScalerMemory.begin(self.now, new=False)

    @property
    def reason(self) -> str | None:
        return self.last.limit.word if self.last and self.last.limit else None


def rules(**given: Any) -> dict[str, Any]:
    return {"behavior": given}


def policy(type: str, value: int, seconds: int) -> dict[str, Any]:
    return {"type": type, "value": value, "periodSeconds": seconds}


AT_ONCE = {"stabilizationWindowSeconds": 0}
DOWN_AT_ONCE = rules(scaleDown=AT_ONCE)


# how much is asked for


def test_the_demand_is_divided_by_what_one_takes_and_kept_within_the_bounds() -> None:
    pool = Scaled(minReplicas=1, maxReplicas=10)
    assert pool.look(0) == 1
    assert pool.reason == "TooFewReplicas"
    assert pool.look(9) == 3
    assert pool.reason is None
    assert pool.look(1000) == 10
    assert pool.reason == "TooManyReplicas"
    assert pool.last is not None
    assert pool.last.message == "queue 1000, target 4 each; the demand needs 250, bounds 1 to 10"


def test_the_metric_that_asks_for_most_wins() -> None:
    pool = Scaled()
    assert pool.look(4, Metric("KV use", 2.5, 0.5)) == 5
    assert pool.last is not None
    assert (
        pool.last.message == "queue 4, target 4 each; KV use 2.5, target 0.5 each; the demand needs 5, bounds 0 to 20"
    )


def test_within_the_tolerance_nothing_changes_in_either_direction() -> None:
    pool = Scaled(size=10, **DOWN_AT_ONCE)
    assert [pool.look(demand) for demand in (40, 44, 36, 37)] == [10, 10, 10, 10]
    assert pool.look(35) == 9
    assert pool.look(45) == 12


def test_bounds_that_were_changed_hold_at_once() -> None:
    assert Scaled(size=15, maxReplicas=5).look(60) == 5
    assert Scaled(size=1, minReplicas=3).look(0) == 3


# windows


def test_down_to_the_highest_that_was_asked_for_within_the_window() -> None:
    pool = Scaled(**rules(scaleDown={"stabilizationWindowSeconds": 300}))
    assert pool.look(40) == 10
    assert pool.look(20, after=200) == 10
    assert pool.reason == "ScaleDownStabilized"
    assert pool.look(8, after=50) == 10
    assert pool.look(8, after=100) == 5, "ten were asked for more than 300 s ago, five 150 s ago"
    assert pool.look(8, after=200) == 2


def test_a_dip_shorter_than_the_window_is_not_followed() -> None:
    pool = Scaled(**rules(scaleDown={"stabilizationWindowSeconds": 300}))
    assert pool.look(40) == 10
    for _ in range(20):
        assert pool.look(4, after=100) == 10
        assert pool.look(40, after=100) == 10


def test_up_only_to_what_was_asked_for_all_through_the_window() -> None:
    pool = Scaled(size=4, **rules(scaleUp={"stabilizationWindowSeconds": 60}))
    assert pool.look(16) == 4
    assert pool.look(28, after=30) == 4
    assert pool.reason == "ScaleUpStabilized"
    assert pool.look(24, after=50) == 6
    assert pool.look(28, after=1) == 6
    assert pool.look(28, after=60) == 7


# policies


def test_policies_limit_the_pace_by_count_and_by_per_cent() -> None:
    ups = {"policies": [policy("Count", 2, 60), policy("Percent", 50, 60)]}
    most = Scaled(size=10, **rules(scaleUp=ups))
    assert most.look(80) == 15
    assert most.reason == "ScaleUpLimit"
    assert most.look(80, after=30) == 15, "counted from the start of the period"
    assert most.look(80, after=61) == 20
    least = Scaled(size=10, **rules(scaleUp={**ups, "selectPolicy": "Min"}))
    assert least.look(80) == 12

    downs = {**AT_ONCE, "policies": [policy("Count", 2, 60), policy("Percent", 50, 60)]}
    most = Scaled(size=10, **rules(scaleDown=downs))
    assert most.look(4) == 5
    assert most.reason == "ScaleDownLimit"
    assert most.look(4, after=30) == 5
    assert most.look(4, after=61) == 2
    least = Scaled(size=10, **rules(scaleDown={**downs, "selectPolicy": "Min"}))
    assert least.look(4) == 8


def test_a_direction_can_be_switched_off() -> None:
    off = {"selectPolicy": "Disabled"}
    assert Scaled(size=5, **rules(scaleDown={**AT_ONCE, **off})).look(0) == 5
    pool = Scaled(size=5, **rules(scaleUp=off))
    assert pool.look(80) == 5
    assert pool.reason == "ScaleUpLimit"


def test_a_policy_by_per_cent_gets_away_from_zero() -> None:
    assert Scaled(**rules(scaleUp={"policies": [policy("Percent", 10, 60)]})).look(80) == 2


# zero


def test_from_zero_at_the_first_demand_whatever_the_window() -> None:
    assert Scaled(**rules(scaleUp={"stabilizationWindowSeconds": 600})).look(1) == 1


def test_to_zero_only_after_nothing_was_to_do_for_long_enough() -> None:
    pool = Scaled(idleTimeoutSeconds=900, **DOWN_AT_ONCE)
    assert pool.look(20) == 5
    assert pool.look(0, after=PANIC_SECONDS) == 1, "one waits for what may come"
    assert pool.look(0, after=600) == 1
    assert pool.reason == "NotIdleLongEnough"
    assert pool.look(1, after=200) == 1, "and has it to do"
    assert pool.look(0, after=1) == 1
    assert pool.look(0, after=899) == 1
    assert pool.look(0, after=1) == 0


def test_a_restart_forgets_neither_the_idle_time_nor_the_changes_of_direction() -> None:
    pool = Scaled(idleTimeoutSeconds=900, **DOWN_AT_ONCE)
    pool.look(4)
    pool.look(0, after=PANIC_SECONDS)
    pool.now += 500
    pool.restart()
    assert pool.look(0, after=399) == 1
    assert pool.look(0, after=1) == 0
    assert pool.record.direction == "Down"
    assert len(pool.record.turns) == 1


# bursts


def test_a_burst_does_not_wait_for_the_window_and_is_not_given_back_for_a_minute() -> None:
    pool = Scaled(size=3, **rules(scaleUp={"stabilizationWindowSeconds": 300}, scaleDown=AT_ONCE))
    pool.look(12)
    assert pool.look(16, after=1) == 3, "a third more waits"
    assert pool.look(24, after=1) == 6, "twice as much does not"
    assert pool.look(4, after=PANIC_SECONDS - 1) == 6
    assert pool.reason == "Panic"
    assert pool.look(4, after=1) == 1


# what is not known


def test_a_missing_metric_blocks_scaling_down_only() -> None:
    pool = Scaled(size=5, **DOWN_AT_ONCE)
    for missing in (Metric("KV use", None, 0.8), Metric("KV use", 0.1, 0.8, complete=False)):
        assert pool.look(4, missing) == 5
        assert pool.reason == "MetricUnknown"
        assert pool.look(40, missing, after=PANIC_SECONDS) == 10
        assert pool.reason is None
        assert pool.look(20, after=PANIC_SECONDS) == 5
    assert pool.look(None) == 5
    assert pool.reason == "MetricUnknown"


def test_after_a_restart_down_only_once_the_window_is_full() -> None:
    pool = Scaled(size=5, restarted=True, **rules(scaleDown={"stabilizationWindowSeconds": 300}))
    assert pool.look(4) == 5
    assert pool.look(4, after=299) == 5
    assert pool.reason == "WindowNotFull"
    assert pool.look(4, after=1) == 1
    held = Scaled(size=5, restarted=True, **rules(scaleDown={**AT_ONCE, "policies": [policy("Count", 1, 600)]}))
    assert held.look(4) == 5, "one may have been given back within the period"
    assert held.look(4, after=600) == 4
    assert Scaled(size=5, restarted=True).look(80) == 20, "up at once"
    slow = Scaled(size=5, restarted=True, **rules(scaleUp={"stabilizationWindowSeconds": 60}))
    assert slow.look(24) == 5
    assert slow.look(24, after=60) == 6


# flapping


def test_the_flap_budget_holds_back_what_can_wait_and_never_the_demand() -> None:
    pool = Scaled(**DOWN_AT_ONCE)
    sizes = []
    for _ in range(20):
        sizes += [pool.look(80, after=61), pool.look(20, after=61)]
    assert sizes[::2] == [20] * 20, "demand is met at once"
    assert sizes[1::2] == [5] * 3 + [20] * 17
    assert pool.reason == "FlapBudget"
    assert pool.look(20, after=FLAP_WINDOW_SECONDS) == 5, "when the hour is over"


# in any world


BEHAVIOR = st.builds(
    lambda window, policies, select: {
        "stabilizationWindowSeconds": window, "policies": policies, "selectPolicy": select,
    },
    st.sampled_from([0, 60, 300]),
    st.lists(st.builds(policy, st.sampled_from(["Count", "Percent"]), st.integers(1, 100), st.integers(1, 300)), max_size=2),
    st.sampled_from(["Max", "Max", "Min", "Disabled"]),
)  # fmt: skip
STEP = st.tuples(st.none() | st.integers(0, 100), st.sampled_from([1, 2, 16, 60, 400]), st.booleans(), st.booleans())


@given(st.integers(0, 5), st.integers(1, 15), BEHAVIOR, BEHAVIOR, st.lists(STEP, max_size=60))
@settings(deadline=None, max_examples=200)
def test_whatever_happens_the_rules_hold(
    low: int, span: int, up: dict[str, Any], down: dict[str, Any], steps: list[tuple[int | None, int, bool, bool]]
) -> None:
    pool = Scaled(minReplicas=low, maxReplicas=low + span, **rules(scaleUp=up, scaleDown=down))
    turned: list[float] = []
    direction = 0
    for demand, seconds, complete, restart in steps:
        if restart:
            pool.restart()
        before = max(pool.size, low)
        after = pool.look(demand, Metric("reported", 0.0, 1.0, complete=complete), after=seconds)
        assert low <= after <= low + span
        if not complete or demand is None:
            assert after >= before
        if demand is not None and after < before:
            assert after * EACH >= demand, "nothing is given back that is needed"
        moved = (after > before) - (after < before)
        if moved and direction == -moved:
            turned.append(pool.now)
        direction = moved or direction
        assert sum(at > pool.now - FLAP_WINDOW_SECONDS for at in turned) <= FLAP_BUDGET
    for _ in range(200):
        pool.look(1000, after=301)
    assert up["selectPolicy"] == "Disabled" or pool.size == low + span, "demand that stays is met in the end"


@pytest.mark.parametrize("seconds", [1, 10, 100])
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(-9, 9)), min_size=1, max_size=50))
def test_peaks_remember_what_a_list_of_all_samples_would(seconds: int, samples: list[tuple[int, int]]) -> None:
    peaks, now, everything = SlidingMax(), 0.0, []
    for wait, value in samples:
        now += wait
        peaks = peaks.add(now, value, 100)
        everything.append((now, value))
        known = [v for at, v in everything if at > now - seconds]
        assert peaks.max_since(now - seconds, -99) == max(known)
    assert peaks.max_since(math.inf, -99) == -99
