"""Progress lines of `submit --wait` for all rollouts that wait together."""

from __future__ import annotations

from rollyard.cli.progress import SAME_SECONDS, StateLines, most_common_reason
from rollyard.kinds.base import Reason
from rollyard.kinds.rollout import RolloutView, Status


def queued(before: int) -> Reason:
    return Reason.parse(
        f"InQueue: {before} rollouts for INIT are before it in RolloutPool demo (since 2026-01-01 10:00:{before:02} UTC)"
    )


def pending(reason: str, second: int) -> Reason:
    return Reason("AllocationPending", f"job 7 is pending: {reason} (since 2026-01-01 10:00:{second:02} UTC)")


def test_a_queue_that_moves_is_no_new_reason_and_a_job_that_waits_for_something_else_is() -> None:
    assert most_common_reason([]) == ("", "")
    reason, line = most_common_reason([queued(5), queued(6), pending("Priority", 1)])
    assert line == f"2 queued: {queued(5)}"
    assert most_common_reason([queued(4), queued(3)])[0] == reason
    first = most_common_reason([pending("Priority", 1), pending("Priority", 2)])
    assert first[1] == f"2 queued: {pending('Priority', 1)}"
    assert most_common_reason([pending("Priority", 9)])[0] == first[0], "not for the time alone"
    assert most_common_reason([pending("AssocMaxJobsLimit", 1)])[0] != first[0]
    assert (
        most_common_reason([Reason("Preparing", "node n1 copies Python")])[1]
        == "1 in INIT: Preparing: node n1 copies Python"
    )


def test_a_sentence_about_one_reason_is_not_repeated_again_and_again() -> None:
    """`try` printed the long sentence about a pool at each of its retries."""
    lines = StateLines()

    def said(now: float, waiting: Reason | None, status: Status = Status.QUEUED) -> bool:
        view = RolloutView.model_construct(id="r", status=status, stage=None, waiting=waiting)
        return lines.next(view, now) is not None

    assert said(0, pending("Priority", 1))
    assert not said(5, pending("Resources", 1))
    assert said(SAME_SECONDS, pending("Resources", 1))
    assert not said(3 * SAME_SECONDS, pending("Resources", 9)), "not for the time alone"
    assert said(3 * SAME_SECONDS, queued(5))
    assert not said(9 * SAME_SECONDS, queued(4))
    assert said(9 * SAME_SECONDS, None)
    assert said(9 * SAME_SECONDS, None, Status.RUNNING)
