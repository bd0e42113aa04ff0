"""The back-off of an image that cannot be had."""

from __future__ import annotations

from itertools import pairwise

from rollyard.kinds.pool import PoolKey
from rollyard.server.rollouts.image_hold import CAP_SECONDS, PERMANENT_CAP_SECONDS, failed, pulling, tried
from rollyard.wire.node import ImageFault

POOL = PoolKey("default", "swe")
FAULT = ImageFault(image="docker://r/a:1", message="no")


def test_the_back_off_grows_with_each_try_of_the_image() -> None:
    hold, delays = None, []
    for at in (5.0, 1_000.0, 2_000.0, 3_000.0):
        hold = failed(tried(hold, at) if hold else None, POOL, FAULT, at)
        delays.append(hold.until - at)
        assert (hold.since, hold.trying) == (5.0, False)
    assert delays == sorted(delays)
    assert all(b / a * 1.34 > 2 for a, b in pairwise(delays)), delays


def test_it_has_a_greatest_value_that_is_larger_for_a_fault_that_stays() -> None:
    for permanent, cap in ((False, CAP_SECONDS), (True, PERMANENT_CAP_SECONDS)):
        hold, fault = None, FAULT.model_copy(update={"permanent": permanent})
        for at in range(100):
            hold = failed(tried(hold, at) if hold else None, POOL, fault, float(at))
        assert hold is not None
        assert 0.75 * cap <= hold.until - 99 <= cap


def test_many_node_agents_that_fail_at_once_are_one_failure() -> None:
    hold = failed(None, POOL, FAULT, 10.0)
    for _ in range(100):
        hold = failed(hold, POOL, FAULT.model_copy(update={"message": "still no"}), 11.0)
    assert (hold.failures, hold.since, hold.message) == (1, 10.0, "still no")


def test_a_pull_that_goes_on_is_no_failure() -> None:
    hold = pulling(None, POOL, "docker://r/a:1", 10.0)
    assert (hold.failures, hold.since, hold.trying) == (0, 0.0, True)
    assert failed(hold, POOL, FAULT, 20.0).failures == 1
