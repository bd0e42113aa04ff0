"""Which ends count against a template, what starts afresh, and how long the next one is waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from rollyard.core.exit_codes import LASTING_EXIT
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import Condition, evolve
from rollyard.kinds.pool import PoolStatus
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.failure_backoff import (
    BACKOFF_CAP_SECONDS,
    FORGET_FAILURES_SECONDS,
    LAUNCH_SECONDS,
    STEADY_SECONDS,
    EndCounts,
    count_ends,
)
from tests.support import make

NOW = 1_700_000_000.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


def one(index: int, made: float, state: str, end: float | None = None, *, of: str = "t", **more: Any) -> Allocation:
    """Times are seconds after NOW; `ready`: when it was for the first time."""
    ready, drain = more.pop("ready", None), more.pop("drain", False)
    times = {"end_time": at(end) if end is not None else None, "ready_at": at(ready) if ready is not None else None}
    spec = {"template_hash": of, "drain": drain}
    return make.allocation(f"p-{index}", created=at(made), spec=spec, job_state=state, **times, **more)


@dataclass
class Pool:
    """Looks again and again, and keeps in its status what each look found."""

    status: PoolStatus = field(default_factory=PoolStatus)

    def look(self, now: float, *allocations: Allocation, template: str = "t", serves: bool = True) -> EndCounts:
        ends = count_ends(self.status, template, allocations, NOW + now, serves=serves, all_ready=False)
        unix = {"last_failure_time": ends.last_failure, "last_interruption_time": ends.last_interruption}
        self.status = evolve(
            self.status,
            template_hash=ends.template,
            failures=ends.failures,
            interruptions=ends.interruptions,
            **{name: datetime.fromtimestamp(t, UTC) if t is not None else None for name, t in unix.items()},
        )
        return ends


@pytest.mark.parametrize(
    ("state", "failures", "interruptions"),
    [
        ("FAILED", 1, 0),
        ("OUT_OF_MEMORY", 1, 0),
        ("COMPLETED", 1, 0),
        ("CANCELLED", 0, 1),
        ("NODE_FAIL", 0, 1),
        ("BOOT_FAIL", 0, 1),
        (JobState.GONE, 0, 1),
        ("TIMEOUT", 0, 0),
        ("PREEMPTED", 0, 0),
    ],
)
def test_only_what_the_template_has_to_answer_for_counts_against_it(
    state: str, failures: int, interruptions: int
) -> None:
    ends = Pool().look(6, one(0, 0, state, 5))
    assert (ends.failures, ends.interruptions) == (failures, interruptions)
    assert Pool().look(6, one(0, 0, state, 5, drain=True)) == EndCounts("t"), "it was to end"


def test_a_persons_scancel_of_all_jobs_is_no_crash_loop_and_all_are_replaced_at_once() -> None:
    gone = [one(i, 0, "CANCELLED", 30 + i) for i in range(4)]
    ends = Pool().look(40, *gone)
    assert (ends.failures, ends.interruptions, ends.failing) == (0, 1, False)
    assert ends.next_at <= NOW + 40


def test_what_is_ended_from_outside_again_and_again_is_replaced_ever_more_slowly() -> None:
    pool, gone, waits = Pool(), list[Allocation](), []
    for n in range(9):
        gone.append(one(n, 100 * n, "NODE_FAIL", 100 * n + 50))
        ends = pool.look(100 * n + 50, *gone)
        waits.append(max(0.0, ends.next_at - NOW - 100 * n - 50))
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, BACKOFF_CAP_SECONDS, BACKOFF_CAP_SECONDS]
    assert ends.is_interrupted
    assert not ends.failing


def test_jobs_that_get_a_node_and_never_run_there_do_not_drain_the_cluster_in_seconds() -> None:
    pool = Pool()
    delays = []
    for n, made in enumerate((0.0, 20.0, 60.0, 130.0)):
        ends = pool.look(made + 1, one(n, made, "CANCELLED", made + 1, node=f"n{n}"), serves=False)
        delays.append(ends.next_at - NOW - made - 1)
    assert delays == [LAUNCH_SECONDS, 2 * LAUNCH_SECONDS, BACKOFF_CAP_SECONDS, BACKOFF_CAP_SECONDS]
    registered = {"jobId": "1", "restartCount": 0, "instance": "i", "node": "n0", "pid": 1, "registeredAt": at(0)}
    hand = Pool().look(1, one(0, 0, "CANCELLED", 1, node="n0", binding=registered))
    assert hand.next_at == 0.0, "a person ended it where it ran"
    assert Pool().look(1, one(0, 0, "CANCELLED", 1)).next_at == 0.0, "it never got a node"


def test_those_that_fail_side_by_side_fail_once_and_what_is_made_after_them_fails_in_a_row() -> None:
    pool = Pool()
    first = [one(0, 0, "FAILED", 5), one(1, 0, "FAILED", 7)]
    assert pool.look(8, *first).failures == 1
    assert pool.look(9, *first).failures == 1, "counted once"
    assert pool.look(20, *first, one(2, 10, "FAILED", 15), one(3, 10, "FAILED", 19)).failures == 2


def test_a_row_ends_when_one_was_ready_for_a_while() -> None:
    failed = [one(0, 0, "FAILED", 5), one(1, 10, "FAILED", 15)]
    pool = Pool()
    assert (pool.look(20, *failed).failures, pool.look(20, *failed).failing) == (2, True)
    ready = one(2, 20, "RUNNING", ready=25)
    just = pool.look(26, *failed, ready)
    assert (just.failures, just.failing) == (2, False), "it is ready: nothing fails now, though it may not last"
    assert pool.look(25 + STEADY_SECONDS, *failed, ready).failures == 0
    died = one(2, 20, "FAILED", 60, ready=25)
    assert (pool.look(61, *failed, died).failures, pool.look(61, *failed, died).failing) == (1, True)


def test_what_dies_as_soon_as_it_is_ready_fails_in_a_row() -> None:
    pool, all_ = Pool(), list[Allocation]()
    for n in range(4):
        all_.append(one(n, 100 * n, "FAILED", 100 * n + 22, ready=100 * n + 20))
        assert pool.look(100 * n + 30, *all_).failures == n + 1


def test_a_short_readiness_is_no_steady_run_however_long_the_job_then_lives() -> None:
    def died(n: int, ready_until: float) -> Allocation:
        lost = Condition(
            type="Ready", status="False", last_transition_time=at(100 * n + ready_until), reason="Starting"
        )
        return one(n, 100 * n, "FAILED", 100 * n + 90, ready=100 * n + 20, conditions=[lost])

    pool, all_ = Pool(), list[Allocation]()
    for n in range(3):
        all_.append(died(n, 22))
        assert pool.look(100 * n + 91, *all_).failures == n + 1
    all_.append(died(3, 20 + STEADY_SECONDS))
    assert pool.look(391, *all_).failures == 1, "this one was ready for long enough"


def test_a_corrected_template_starts_afresh_and_an_undone_one_too() -> None:
    pool = Pool()
    bad = [one(n, 10 * n, "FAILED", 10 * n + 5) for n in range(5)]
    for n in range(5):
        ends = pool.look(10 * n + 6, *bad[: n + 1])
    assert ends.next_at == NOW + 45 + 16
    corrected = pool.look(50, *bad, template="new")
    assert (corrected.failures, corrected.next_at, corrected.failing) == (0, 0.0, False)
    again = pool.look(52, *bad)
    assert (again.failures, again.next_at) == (0, 0.0), "what failed then has been counted"


def test_failures_of_an_earlier_template_do_not_count() -> None:
    assert Pool().look(6, one(0, 0, "FAILED", 5, of="old")).failures == 0


def test_failures_are_forgotten_when_all_has_been_calm() -> None:
    known = PoolStatus(template_hash="t", failures=4, last_failure_time=at(0))
    later = NOW + FORGET_FAILURES_SECONDS + 1
    assert count_ends(known, "t", [], later, serves=True, all_ready=True).failures == 0
    assert count_ends(known, "t", [], later, serves=True, all_ready=False).failures == 4
    assert count_ends(known, "t", [], NOW + 1, serves=True, all_ready=True).failures == 4


def test_while_nothing_serves_a_failed_template_is_tried_more_often() -> None:
    known = PoolStatus(template_hash="t", failures=7, last_failure_time=at(0))
    assert count_ends(known, "t", [], NOW, serves=True, all_ready=False).next_at == NOW + 60
    assert count_ends(known, "t", [], NOW, serves=False, all_ready=False).next_at == NOW + 15


def test_what_somebody_must_change_is_tried_less_often_also_while_nothing_serves() -> None:
    """A pool whose model's folder was missing cost 11 jobs in five minutes."""
    pool, made, jobs = Pool(), 0.0, []
    while made < 300:
        jobs.append(one(len(jobs), made, "FAILED", made + 5, exit_code=LASTING_EXIT))
        made = pool.look(made + 5, *jobs, serves=False).next_at - NOW
    assert [round(job.metadata.creation_timestamp.timestamp() - NOW) for job in jobs] == [0, 20, 55, 120, 245]
    other = [*jobs, one(len(jobs), made, "FAILED", made + 5, exit_code=1)]
    assert pool.look(made + 5, *other, serves=False).next_at == NOW + made + 5 + 15


def test_a_failure_in_the_future_does_not_hide_later_ones() -> None:
    """Slurm's clock, or this server's before it was set back, called the first end 180 s later than it is now."""
    pool = Pool()
    assert pool.look(2, one(0, 0, "FAILED", 182)).failures == 1
    assert pool.status.last_failure_time == at(2)
    later = [one(0, 0, "FAILED", 182), one(1, 4, "FAILED", 5)]
    found = pool.look(6, *later)
    assert found.failures == 2
    assert found.next_at == NOW + 5 + 2, "the back-off is counted from the last end, by our clock"
