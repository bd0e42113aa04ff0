"""The cap of a pool's submits within a minute."""

from __future__ import annotations

from rollyard.reconcilers.submit_cap import MIN_JOBS, SIZES, WINDOW_SECONDS, SubmitCap


def test_a_pool_whose_failures_nobody_sees_submits_no_more_than_the_cap_within_a_minute() -> None:
    cap, submitted = SubmitCap(), 0
    for tenth in range(600):
        submitted += not cap.take("pool", 1, size=1, now=tenth / 10)
    assert submitted == MIN_JOBS
    assert cap.take("pool", 1, size=1, now=59.9) > 0
    assert cap.take("other", 1, size=1, now=59.9) == 0, "each pool has its own"
    assert cap.take("pool", 1, size=1, now=WINDOW_SECONDS) == 0


def test_a_large_pool_may_start_and_be_replaced_at_once() -> None:
    cap = SubmitCap()
    assert cap.take("pool", 500, size=500, now=0.0) == 0
    assert cap.take("pool", 500, size=500, now=1.0) == 0
    assert cap.count("pool", 1.0) == 1000
    assert cap.take("pool", (SIZES - 1) * 500, size=500, now=2.0) == WINDOW_SECONDS - 2.0
    assert cap.count("pool", WINDOW_SECONDS + 1.0) == 0


def test_one_submit_larger_than_the_cap_is_let_through() -> None:
    assert SubmitCap().take("pool", 1000, size=1, now=0.0) == 0
