"""Why jobs wait, in words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.values.slurm_reasons import PendingReason
from rollyard.reconcilers.pending_jobs import pending_reason
from tests.support import make


def allocation(index: int, state: str, reason: str = "", start: datetime | None = None) -> Allocation:
    return make.allocation(f"p-{index}", job_state=state, reason=reason, start_time=start)


def test_nothing_waits_when_all_run() -> None:
    assert pending_reason([allocation(0, "RUNNING"), allocation(1, "FAILED", "NonZeroExitCode")]) is None


def test_the_reason_that_most_wait_for_comes_first_with_the_first_start() -> None:
    first = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    found = pending_reason(
        [
            allocation(0, "RUNNING"),
            allocation(1, "PENDING", "QOSMaxGRESPerUser"),
            allocation(2, "PENDING", "Priority", datetime(2031, 1, 1, tzinfo=UTC)),
            allocation(3, "PENDING", "QOSMaxGRESPerUser", first),
        ]
    )
    assert found is not None
    assert found.word == "QOSMaxGRESPerUser"
    assert found.message == (
        "3 of 4 jobs pending: 2 QOSMaxGRESPerUser (the QOS allows a user no more GPUs or other gres), "
        "1 Priority (other jobs have a higher priority); the first is expected to start at 2030-01-02 03:04:05 UTC"
    )


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        ("QOSMaxJobsPerUserLimit", True),
        ("AssocGrpGRES", True),
        ("PartitionTimeLimit", True),
        ("MaxSubmitJobs", True),
        ("QOSNotAllowed", False),
        ("Priority", False),
        ("Resources", False),
        ("JobHeldAdmin", False),
        ("", False),
    ],
)
def test_limits_are_told_from_the_order_of_the_queue(reason: str, limit: bool) -> None:
    assert PendingReason(reason).is_limit is limit


def test_a_word_that_nobody_knows_stands_for_itself() -> None:
    assert PendingReason("SomethingNew").meaning == ""
    assert (
        PendingReason("ReqNodeNotAvail, UnavailableNodes:n[1-4]").meaning
        == "nodes that it needs are down, drained or reserved"
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("QOSMaxGRESPerUser", "the QOS allows a user no more GPUs or other gres"),
        ("QOSMaxJobsPerUserLimit", "the QOS allows a user no more running jobs"),
        ("QOSGrpGRESMinutes", "the QOS allows all its jobs together no more minutes of GPUs or other gres"),
        ("QOSMinCpuNotSatisfied", "the QOS requires more CPUs in each job"),
        ("AssocMaxWallDurationPerJobLimit", "the account allows one job no more walltime"),
        ("AssocGrpNodeLimit", "the account allows all its jobs together no more nodes"),
        (
            "(launch_failed_requeued_held)",
            "its start on a node failed and Slurm holds it; `scontrol release` lets it continue",
        ),
    ],
)
def test_limits_are_said_in_words(reason: str, words: str) -> None:
    assert PendingReason(reason).meaning == words
