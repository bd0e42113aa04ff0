"""The back-off of an image that cannot be had."""

from __future__ import annotations

from itertools import pairwise

from rollyard.kinds.pool import PoolKey
from rollyard.server.rollouts.missing_image import CAP_SECONDS, PERMANENT_CAP_SECONDS, failed, next_try, pulling, tried
from rollyard.wire.node import ImageFault

POOL = PoolKey("default", "swe")
FAULT = ImageFault(image="docker://r/a:1", message="no")


def test_the_back_off_grows_with_each_try_of_the_image() -> None:
    missing, delays = None, []
    for at in (5.0, 1_000.0, 2_000.0, 3_000.0):
        missing = failed(tried(missing, at) if missing else None, POOL, FAULT, at)
        delays.append(missing.until - at)
        assert (missing.since, missing.trying) == (5.0, False)
    assert delays == sorted(delays)
    assert all(b / a * 1.34 > 2 for a, b in pairwise(delays)), delays


def test_it_has_a_greatest_value_that_is_larger_for_a_fault_that_stays() -> None:
    for permanent, cap in ((False, CAP_SECONDS), (True, PERMANENT_CAP_SECONDS)):
        missing, fault = None, FAULT.model_copy(update={"permanent": permanent})
        for at in range(100):
            missing = failed(tried(missing, at) if missing else None, POOL, fault, float(at))
        assert missing is not None
        assert 0.75 * cap <= missing.until - 99 <= cap


def test_many_node_agents_that_fail_at_once_are_one_failure() -> None:
    missing = failed(None, POOL, FAULT, 10.0)
    for _ in range(100):
        missing = failed(missing, POOL, FAULT.model_copy(update={"message": "still no"}), 11.0)
    assert (missing.failures, missing.since, missing.message) == (1, 10.0, "still no")


def test_a_pull_that_goes_on_is_no_failure() -> None:
    missing = pulling(None, POOL, "docker://r/a:1", 10.0)
    assert (missing.failures, missing.since, missing.trying) == (0, 0.0, True)
    assert failed(missing, POOL, FAULT, 20.0).failures == 1


def test_no_try_is_promised_that_nothing_will_make() -> None:
    missing = failed(None, POOL, FAULT, 10.0)
    seconds = missing.until - 10.0
    assert next_try(missing, 10.0, needed=True).startswith("at 1970-01-01 00:00:1")
    assert next_try(missing, missing.until, needed=True) == "as soon as a node has room"
    for now in (10.0, missing.until, missing.until + 600):
        assert next_try(missing, now, needed=False) == "when a rollout needs it"
        assert next_try(missing, now, needed=False, default=True).endswith(
            "or a node looks for the pool's default image"
        )
    trying = tried(missing, 10.0 + seconds)
    assert next_try(trying, trying.until - 1, needed=False) == "now"
    assert next_try(trying, trying.until, needed=False) == "when a rollout needs it", (
        "the rollout that tried it is gone"
    )
