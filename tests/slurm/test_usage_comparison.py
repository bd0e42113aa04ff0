"""Hours of jobs beside those of Slurm's accounting, with the reason of each difference."""

from __future__ import annotations

import pytest

from rollyard.kinds.usage import JobBesideSlurm, JobTime, SlurmUsageView
from rollyard.slurm.base import JobAccount
from rollyard.slurm.cli_driver import MARK, read_accounts
from rollyard.slurm.usage_comparison import compare, without_slurm

NOW, HOUR = 100_000.0, 3600.0


def job(
    id: str = "7",
    start: float = NOW - 2 * HOUR,
    end: float = NOW - HOUR,
    running: bool = False,
    allocation: str = "policy-ip-0",
    pool: str = "policy",
) -> JobTime:
    return JobTime(id, allocation, "default", "InferencePool", pool, start, start, end, running, 2, 8)


def account(
    start: float | None = NOW - 2 * HOUR,
    end: float | None = NOW - HOUR,
    cpus: int = 8,
    gpus: int = 2,
    name: str = "rollyard-policy-ip-0",
) -> JobAccount:
    return JobAccount(name, start if start is not None else end, start, end, cpus, gpus)


def comparison(
    jobs: list[JobTime], accounts: dict[str, list[JobAccount]], since: float = 0.0, limit: int = 100
) -> SlurmUsageView:
    """Whatever is compared, the causes add up to the difference of the sums."""
    found = compare(jobs, accounts, since, NOW, limit)
    total, parts = found.total, found.differences
    assert total.slurm_gpu_hours is not None
    assert total.slurm_cpu_hours is not None
    assert sum(part.gpu_hours for part in parts) == pytest.approx(total.slurm_gpu_hours - total.gpu_hours)
    assert sum(part.cpu_hours for part in parts) == pytest.approx(total.slurm_cpu_hours - total.cpu_hours)
    return found


def compared(jobs: list[JobTime], accounts: dict[str, list[JobAccount]], since: float = 0.0) -> list[JobBesideSlurm]:
    return comparison(jobs, accounts, since).jobs


def test_jobs_with_one_number_are_told_apart_by_name_and_submit() -> None:
    """The first ran in another Slurm, whose numbers began at 1 too."""
    moved = job("1", NOW - 3 * HOUR, NOW - 2 * HOUR)
    present = job("1", NOW - HOUR, NOW, running=True, allocation="policy-ip-1")
    runs = [account(NOW - HOUR, None, name="rollyard-policy-ip-1")]
    found = {one.allocation: one for one in compared([moved, present], {"1": runs})}
    assert found["policy-ip-1"].why == []
    assert found["policy-ip-0"].slurm_cpu_hours is None
    assert found["policy-ip-0"].why == [
        "accounting does not know the job: it never was in this Slurm, where job 1 is another one"
    ]
    (found_beside,) = compared([moved], {"1_0": [account(NOW - HOUR, None, name="rollyard-demo-rp")]})
    assert found_beside.why == found["policy-ip-0"].why
    burst = [account(NOW - HOUR, None, name="rollyard-policy-ip")]  # jobs of an array have the pool's name alone
    assert [one.slurm_cpu_hours for one in compared([moved, present], {"1": burst})] == [None, 8.0]


def test_equal_counts_have_no_reason_and_only_the_time_asked_for_counts() -> None:
    (found,) = compared([job(start=NOW - 9 * HOUR)], {"7": [account(start=NOW - 9 * HOUR)]}, NOW - 2 * HOUR)
    assert (found.gpu_hours, found.cpu_hours) == (found.slurm_gpu_hours, found.slurm_cpu_hours) == (2.0, 8.0)
    assert found.why == []


@pytest.mark.parametrize(
    ("own", "theirs", "why"),
    [
        (job(), None, "accounting does not know the job"),
        (job(end=NOW - HOUR + 30), account(), "the end was recorded 30 s later"),
        (job(start=NOW - 2 * HOUR - 5), account(), "our start is 5 s earlier"),
        (job(), account(cpus=10), "Slurm allocated 10 cores, and the template asks for 8"),
        (job(), account(gpus=4), "Slurm allocated 4 GPUs, and the template asks for 2"),
        (job(), account(end=None), "accounting does not know of the job's end yet"),
        (job(end=NOW, running=True), account(), "the job has ended by accounting, and the server has not seen it"),
        (job(), account(start=None), "the job never started by accounting"),
    ],
)
def test_a_difference_is_told(own: JobTime, theirs: JobAccount | None, why: str) -> None:
    (found,) = compared([own], {} if theirs is None else {"7": [theirs]})
    assert why in found.why
    differs = (found.gpu_hours, found.cpu_hours) != (found.slurm_gpu_hours, found.slurm_cpu_hours)
    assert differs, "the reason is for a difference"


def test_the_greatest_difference_comes_first() -> None:
    jobs = [job("1"), job("2", end=NOW - HOUR + 9), job("3", end=NOW - HOUR + 99)]
    found = compared(jobs, {one.id: [account()] for one in jobs})
    assert [one.id for one in found] == ["3", "2", "1"]


def test_each_run_of_a_requeued_job_counts_for_slurm_and_one_that_never_began_does_not() -> None:
    waiting = account(start=None, end=NOW - HOUR, cpus=0, gpus=0)
    namesake = account(NOW - 9 * HOUR, NOW - 8 * HOUR)
    (found,) = compared([job()], {"7": [namesake, account(), waiting]})
    assert (found.slurm_gpu_hours, found.slurm_cpu_hours, found.why) == (2.0, 8.0, [])
    (found,) = compared([job()], {"7": [account(), account(NOW - HOUR, NOW - HOUR / 2)]})
    assert (found.gpu_hours, found.slurm_gpu_hours) == (2.0, 3.0)
    assert found.why == ["Slurm ran the job 2 times, and Rollyard counts the first"]


def test_sums_by_pool_are_about_the_same_jobs_and_name_those_in_neither() -> None:
    jobs = [job("1"), job("2", end=NOW), job("3", pool="judge"), job("step-4", pool="judge")]
    accounts = {"1": [account(cpus=16)], "2": [account(end=NOW), account(NOW - HOUR / 2, NOW)], "3": [account()]}
    found = comparison(jobs, accounts, limit=2)
    assert [(row.pool, row.jobs, row.cpu_hours, row.slurm_cpu_hours, row.differing) for row in found.rows] == [
        ("judge", 1, 8.0, 8.0, 0),
        ("policy", 2, 24.0, 36.0, 2),
    ]
    total = found.total
    assert (total.jobs, total.gpu_hours, total.slurm_gpu_hours, total.differing) == (3, 8.0, 9.0, 2)
    assert (total.unknown_jobs, total.unknown_gpu_hours, total.unknown_cpu_hours) == (1, 2.0, 8.0)
    assert [(part.cause, part.jobs, part.gpu_hours, part.cpu_hours) for part in found.differences] == [
        ("Resources", 1, 0.0, 8.0),
        ("Reruns", 1, 1.0, 4.0),
    ]
    assert [one.id for one in found.jobs] == ["step-4", "1"], "those that differ most, as many as asked for"
    assert found.jobs[0].why == [
        "accounting does not know the job: it is a step of the job in `spec.allocation.within`, and counts there"
    ]


def test_without_slurm_its_hours_are_unknown_and_not_zero() -> None:
    found = without_slurm([job()], 0.0, NOW, "there is no Slurm")
    assert found.missing == "there is no Slurm"
    assert [(row.pool, row.gpu_hours, row.slurm_gpu_hours) for row in found.rows] == [("policy", 2.0, None)]
    assert (found.total.cpu_hours, found.total.slurm_cpu_hours, found.jobs) == (8.0, None, [])


def test_sacct_is_read_with_gpus_of_any_type() -> None:
    rows = [
        ["JobID", "JobName", "Submit", "Start", "End", "AllocCPUS", "AllocTRES"],
        [
            "7",
            "a",
            "2026-11-30T09:59:00",
            "2026-11-30T10:00:00",
            "2026-11-30T11:00:00",
            "8",
            "billing=8,cpu=8,gres/gpu=2,gres/gpu:a100=2,node=1",
        ],
        [
            "8_1",
            "b",
            "2026-11-30T09:59:00",
            "2026-11-30T10:00:00",
            "Unknown",
            "4",
            "cpu=4,gres/gpu:a100=1,gres/gpu:h200=2",
        ],
        ["8_1", "b", "2026-11-30T09:59:00", "Unknown", "2026-11-30T11:00:00", "0", ""],
        ["9", "c", "2026-11-30T09:59:00", "Unknown", "Unknown", "0", ""],
    ]
    found = read_accounts("\n".join(MARK.join([*row, ""]) for row in rows))
    assert [(one.cpus, one.gpus) for (one, *_) in found.values()] == [(8, 2), (4, 3), (0, 0)]
    assert list(found) == ["7", "8_1", "9"]
    assert found["7"][0].end == (found["7"][0].start or 0) + HOUR
    assert [one.end for one in found["8_1"]] == [None, found["7"][0].end]
    assert found["9"][0].start is None
