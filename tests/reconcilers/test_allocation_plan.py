"""Plans for single allocations: what is submitted, adopted, cancelled and given up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.allocation_plan import MIN_MISSES, SUBMIT_MARGIN_SECONDS, plan_allocation
from rollyard.slurm.base import Job, JobListing
from tests.support import make

NOW = 1_700_000_000.0
SUBMITTED_AT = datetime.fromtimestamp(NOW, UTC)
COMMENT = "rollyard:server:uid"
INTENT = {"intents": 1, "intended_at": SUBMITTED_AT}


def allocation(*, deleted: bool = False, **status: Any) -> Allocation:
    return make.allocation(deleted=SUBMITTED_AT if deleted else None, **status)


def job(id: str, state: JobState = JobState.RUNNING, comment: str = COMMENT) -> Job:
    return make.job(id, state, comment)


def listing(*jobs: Job, taken_at: float = NOW + 100) -> JobListing:
    return make.listing(*jobs, at=taken_at)


def test_the_first_submit_needs_a_listing_that_can_be_read() -> None:
    assert plan_allocation(allocation(), COMMENT, listing(), 0).submit
    unknown = plan_allocation(allocation(), COMMENT, None, 0)
    assert (unknown.submit, unknown.wait) == (False, True)


def test_after_an_intent_only_a_later_complete_listing_lets_it_be_repeated() -> None:
    pending = allocation(**INTENT)
    for view in (None, listing(taken_at=NOW), listing(taken_at=NOW + SUBMIT_MARGIN_SECONDS - 0.1)):
        found = plan_allocation(pending, COMMENT, view, 0)
        assert (found.submit, found.wait) == (False, True)
    later = listing(job("9", comment="rollyard:server:other"), taken_at=NOW + SUBMIT_MARGIN_SECONDS)
    assert plan_allocation(pending, COMMENT, later, MIN_MISSES - 1).wait, "one look-up may be wrong"
    assert plan_allocation(pending, COMMENT, later, MIN_MISSES).submit


@given(
    intents=st.integers(0, 2),
    taken=st.none() | st.floats(NOW - 10, NOW + 10),
    jobs=st.lists(st.sampled_from(["1", "2", "3"]), unique=True),
    recorded=st.none() | st.sampled_from(["1", "2"]),
    deleted=st.booleans(),
)
def test_nothing_is_ever_submitted_where_a_job_may_be(
    intents: int, taken: float | None, jobs: list[str], recorded: str | None, deleted: bool
) -> None:
    status: dict[str, Any] = {"intents": intents, "intended_at": SUBMITTED_AT if intents else None}
    one = allocation(deleted=deleted, **status, job_id=recorded if intents else None)
    view = None if taken is None else listing(*(job(id) for id in jobs if intents), taken_at=taken)
    found = plan_allocation(one, COMMENT, view, MIN_MISSES)
    if found.submit:
        assert view is not None
        assert not deleted
        assert intents == 0 or (not jobs and recorded is None and view.taken_at >= NOW + SUBMIT_MARGIN_SECONDS)
    assert sum([found.adopt is not None, found.submit, found.gone, found.remove, found.wait]) == 1


def test_a_job_whose_id_was_never_recorded_is_adopted_by_its_comment() -> None:
    ours = job("12")
    view = listing(job("11", comment="rollyard:server:another"), ours)
    assert plan_allocation(allocation(**INTENT), COMMENT, view, 0).adopt == ours


def test_of_several_copies_one_stays_and_the_others_are_cancelled() -> None:
    view = listing(job("7"), job("10"), job("5", JobState.FAILED), job("8", comment="another"))
    adopted = plan_allocation(allocation(**INTENT), COMMENT, view, 0)
    assert (adopted.adopt, adopted.cancel) == (job("7"), ("10",)), "the first that lives, by number"
    recorded = plan_allocation(allocation(**INTENT, job_id="10"), COMMENT, view, 0)
    assert (recorded.adopt, recorded.cancel) == (job("10"), ("7",))


def test_a_job_counts_as_gone_only_after_two_misses() -> None:
    one = allocation(**INTENT, job_id="7", job_state="RUNNING")
    for missed in (0, 1):
        found = plan_allocation(one, COMMENT, listing(), missed)
        assert (found.gone, found.wait, found.submit) == (False, True, False)
    assert plan_allocation(one, COMMENT, listing(), 2).gone
    assert plan_allocation(one, COMMENT, None, 9).wait, "a listing that failed says nothing"


def test_a_deleted_one_ends_its_jobs_before_it_goes() -> None:
    running = plan_allocation(allocation(deleted=True, **INTENT), COMMENT, listing(job("7"), job("9")), 0)
    assert (set(running.cancel), running.remove) == ({"7", "9"}, False)
    assert plan_allocation(allocation(deleted=True, **INTENT, job_state="CANCELLED"), COMMENT, None, 0).remove
    assert plan_allocation(allocation(deleted=True), COMMENT, None, 0).remove, "nothing was ever submitted"
    unsure = plan_allocation(allocation(deleted=True, **INTENT), COMMENT, listing(taken_at=NOW), 0)
    assert (unsure.remove, unsure.wait) == (False, True)
    assert plan_allocation(allocation(deleted=True, **INTENT), COMMENT, listing(), MIN_MISSES).remove


def test_what_has_ended_is_left_alone() -> None:
    over = allocation(**INTENT, job_id="7", job_state="FAILED")
    found = plan_allocation(over, COMMENT, listing(), 5)
    assert (found.adopt, found.submit, found.remove, found.cancel, found.gone) == (None, False, False, (), False)


def test_a_copy_that_lives_on_after_its_end_was_concluded_is_ended_first() -> None:
    view = listing(job("7"), job("8", JobState.FAILED), job("9", comment="another"))
    over = plan_allocation(allocation(**INTENT, job_id="7", job_state=JobState.GONE), COMMENT, view, 0)
    assert (over.cancel, over.remove) == (("7",), False)
    deleted = plan_allocation(allocation(deleted=True, **INTENT, job_id="7", job_state=JobState.GONE), COMMENT, view, 0)
    assert (deleted.cancel, deleted.remove) == (("7",), False)


def test_a_job_that_slurm_only_cleans_up_after_is_cancelled_once() -> None:
    stuck = allocation(deleted=True, **INTENT, job_id="7", job_state="COMPLETING")
    assert plan_allocation(stuck, COMMENT, listing(job("7", JobState.COMPLETING)), 0).cancel == ()


def test_an_id_that_sbatch_made_up_gives_way_to_the_job_with_our_comment() -> None:
    wrong, ours = allocation(**INTENT, job_id="99"), job("7")
    assert plan_allocation(wrong, COMMENT, listing(ours), 0).adopt == ours
    seen = allocation(**INTENT, job_id="99", job_state="RUNNING")
    assert plan_allocation(seen, COMMENT, listing(ours), 0).adopt is None, "job 99 was there: 7 is a copy"
