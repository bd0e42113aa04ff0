"""The size of a pool that follows its demand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollyard.kinds.pools import Autoscaling
from rollyard.reconcilers.scaling import Scale, autoscale

BOUNDS = Autoscaling(min_replicas=1, max_replicas=10, idle_timeout_seconds=100)


def scale(demand: int | None, current: int, *, since: float | None = None, now: float = 1000.0) -> Scale:
    return autoscale(BOUNDS, current=current, demand=demand, capacity=4, below_since=since, now=now)


def test_up_at_once_and_never_above_the_bounds() -> None:
    assert scale(9, 1).desired == 3
    assert scale(8, 1).desired == 2
    assert scale(1000, 1).desired == 10
    assert scale(0, 0).desired == 1


def test_down_only_after_demand_was_lower_all_the_time() -> None:
    first = scale(4, 5)
    assert (first.desired, first.below_since) == (5, 1000.0)
    waiting = scale(4, 5, since=first.below_since, now=1099.0)
    assert (waiting.desired, waiting.below_since) == (5, 1000.0)
    assert scale(4, 5, since=first.below_since, now=1100.0) == Scale(
        1, None, "demand 4, 4 each, between 1 and 10, lower for 100 s"
    )


def test_a_peak_in_between_begins_the_wait_anew() -> None:
    assert scale(20, 5, since=950.0).below_since is None
    assert scale(24, 5, since=950.0) == Scale(6, None, "demand 24, 4 each, between 1 and 10")


def test_a_demand_that_is_nearly_met_changes_nothing() -> None:
    assert scale(37, 10, since=0.0).desired == 10, "within the tolerance of a tenth"
    assert scale(36, 10, since=0.0).desired == 9


def test_a_demand_that_is_not_known_scales_nothing_down() -> None:
    found = scale(None, 5, since=0.0)
    assert (found.desired, found.below_since) == (5, None)
    assert scale(None, 99).desired == 10, "the bounds hold all the same"


@given(
    st.integers(0, 20), st.integers(0, 20), st.none() | st.integers(0, 500), st.integers(1, 50),
    st.integers(0, 60), st.none() | st.floats(0, 1000), st.floats(1000, 2000),
)  # fmt: skip
def test_the_bounds_always_hold_and_more_demand_never_shrinks(
    low: int, span: int, demand: int | None, capacity: int, current: int, since: float | None, now: float
) -> None:
    bounds = Autoscaling(min_replicas=low, max_replicas=low + span + 1)
    found = autoscale(bounds, current=current, demand=demand, capacity=capacity, below_since=since, now=now)
    assert low <= found.desired <= low + span + 1
    if demand is not None:
        assert found.desired * capacity >= demand or found.desired == low + span + 1
    assert found.below_since is None or found.desired == min(max(current, low), low + span + 1)
