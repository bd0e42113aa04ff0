"""Which witness is believed about a job that the queue does not show, and when a whole table is not."""

from __future__ import annotations

import pytest

from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.missing_jobs import (
    ABSENT_SECONDS,
    DISPUTE_SECONDS,
    END_QUIET_SECONDS,
    Absence,
    AbsenceVerdict,
    KnownJob,
    absences,
    contradicted_ends,
    is_incomplete,
    judge_absence,
    why_doubted,
)
from rollyard.slurm.base import Job, JobListing
from tests.support.make import job, listing

NOW = 1_000.0
SOON, LATER = 5.0, ABSENT_SECONDS + 5.0


def table(*jobs: Job, at: float = NOW) -> JobListing:
    return listing(*jobs, at=at)


def absent(ago: float, heard: float | None = None, account: JobState | None = None, **more: object) -> Absence:
    """Missing since so many seconds before NOW; `heard`: seconds before NOW; accounting has been asked."""
    known = KnownJob("7", heard_at=None if heard is None else NOW - heard, leaving=bool(more.pop("leaving", False)))
    answer = None if account is None else job("7", account)
    fields = {"lookups": 2, "asked_at": NOW - 1.0, "accounting_state": answer, **more}
    return Absence(known, NOW - ago, **fields)  # type: ignore[arg-type]


RUNS, OVER = JobState.RUNNING, JobState.NODE_FAIL


@pytest.mark.parametrize(
    ("absence", "expected"),
    [
        (absent(SOON, lookups=1), AbsenceVerdict.WAIT),
        (absent(LATER, lookups=1), AbsenceVerdict.WAIT),
        # accounting knows the end: two of Slurm's words against one
        (absent(SOON, account=OVER), AbsenceVerdict.BELIEVED),
        (absent(SOON, heard=1.0, account=OVER), AbsenceVerdict.BELIEVED),
        # its process is heard of
        (absent(SOON, heard=1.0), AbsenceVerdict.LIVES),
        (absent(100_000.0, heard=1.0), AbsenceVerdict.LIVES),
        (absent(SOON, heard=1.0, account=RUNS), AbsenceVerdict.LIVES),
        (absent(SOON, heard=1.0, accounting_error="no"), AbsenceVerdict.LIVES),
        (absent(SOON, heard=SOON + 1.0), AbsenceVerdict.WAIT),
        (absent(100.0, heard=LATER), AbsenceVerdict.BELIEVED),
        # silent, and accounting says that it lives
        (absent(SOON, account=RUNS), AbsenceVerdict.LIVES),
        (absent(SOON, account=JobState.PENDING), AbsenceVerdict.LIVES),
        (absent(DISPUTE_SECONDS + 1.0, account=RUNS), AbsenceVerdict.BELIEVED),
        (absent(DISPUTE_SECONDS + 99.0, heard=50.0, account=RUNS), AbsenceVerdict.LIVES),
        # silent, and accounting too
        (absent(LATER, accounting_error="Connection refused"), AbsenceVerdict.WAIT),
        (absent(LATER, asked_at=None), AbsenceVerdict.WAIT),
        (absent(DISPUTE_SECONDS + 1.0, accounting_error="Connection refused"), AbsenceVerdict.BELIEVED),
        # nobody knows it
        (absent(SOON), AbsenceVerdict.WAIT),
        (absent(LATER), AbsenceVerdict.BELIEVED),
        (absent(SOON, leaving=True), AbsenceVerdict.BELIEVED),
        # shown as it was before
        (absent(SOON, account=JobState.PENDING, rewound=True), AbsenceVerdict.WAIT),
        (absent(LATER, account=JobState.PENDING, rewound=True), AbsenceVerdict.BELIEVED),
        (absent(LATER, account=RUNS, rewound=True), AbsenceVerdict.LIVES),
        (absent(LATER, heard=1.0, account=JobState.PENDING, rewound=True), AbsenceVerdict.LIVES),
        # shown as ended, and heard of
        (absent(SOON, heard=1.0, ended=JobState.COMPLETED), AbsenceVerdict.LIVES),
        (absent(SOON, heard=1.0, ended=JobState.COMPLETED, lookups=1), AbsenceVerdict.LIVES),
        (absent(1.0, heard=2.0, ended=JobState.COMPLETED), AbsenceVerdict.WAIT),
        (absent(SOON, heard=1.0, ended=JobState.COMPLETED, account=OVER), AbsenceVerdict.BELIEVED),
    ],
)
def test_one_table_does_not_overrule_two_witnesses(absence: Absence, expected: AbsenceVerdict) -> None:
    assert judge_absence(absence, NOW) is expected


def known(*ids: str, **more: object) -> list[KnownJob]:
    return [KnownJob(id, **more) for id in ids]  # type: ignore[arg-type]


def missed(jobs: list[KnownJob], *shown: Job, looks: int = 2) -> dict[str, Absence]:
    found: dict[str, Absence] = {}
    for look in range(looks):
        found = absences(found, jobs, table(*shown, at=NOW + look))
    return found


@pytest.mark.parametrize(
    ("jobs", "shown", "words"),
    [
        (known(), (), ""),
        (known("1", "2"), (job("1"), job("2", JobState.FAILED)), ""),
        (known("1"), (), "1 of 1 jobs missing"),
        (known("1", "2"), (job("1"),), ""),
        (known("1", "2"), (), "2 of 2 jobs missing"),
        (known("1", "2", "3"), (job("1"), job("2")), ""),
        (known("1", "2", "3"), (job("1"),), "2 of 3 jobs missing"),
        (known("1", "2", "3", "4"), (job("1"), job("2")), ""),
        (known("1", leaving=True), (), ""),
        (known("1", since=NOW + 60.0), (), ""),
        (known("1", "2"), (job("1"), job("2", JobState.PENDING)), "older than an earlier one: job 2 ran"),
        (known("1"), (job("1", JobState.PENDING, restart_count=1),), ""),
        (known("1", is_running=False), (job("1", JobState.PENDING),), ""),
    ],
)
def test_a_table_that_lacks_many_jobs_or_goes_back_in_time_is_doubted_as_a_whole(
    jobs: list[KnownJob], shown: tuple[Job, ...], words: str
) -> None:
    found = why_doubted(jobs, missed(jobs, *shown), NOW + 2.0)
    assert words in found
    assert bool(words) == bool(found)


def test_what_is_known_to_have_ended_is_not_missed() -> None:
    jobs = known("1", "2", "3")
    missing = missed(jobs, job("3"))
    missing |= {id: missing[id].with_accounting(NOW, job(id, JobState.COMPLETED)) for id in ("1", "2")}
    assert why_doubted(jobs, missing, NOW + 2.0) == ""


def test_the_words_name_the_witnesses() -> None:
    heard = known("1", "2", heard_at=NOW + 1.5)
    missing = missed(heard)
    assert why_doubted(heard, missing, NOW + 2.0) == "2 of 2 jobs missing from squeue; heartbeats say they run"
    missing["1"] = missing["1"].with_accounting(NOW, job("1"))
    assert why_doubted(heard, missing, NOW + 2.0).endswith("; heartbeats and accounting say they run")
    silent = {id: a.with_accounting(NOW, None, "Connection refused") for id, a in missed(known("1", "2")).items()}
    assert why_doubted(known("1", "2"), silent, NOW + 2.0).endswith("; accounting does not answer (Connection refused)")


def test_a_job_that_comes_back_is_counted_from_new_and_one_dispute_does_not_last_for_ever() -> None:
    jobs = known("1", "2", heard_at=NOW + DISPUTE_SECONDS + 1.0)
    missing = missed(jobs, job("2"), looks=3)
    assert (list(missing), missing["1"].lookups) == (["1"], 3)
    assert is_incomplete(missing.values(), NOW + 2.0)
    assert not is_incomplete(missing.values(), NOW + DISPUTE_SECONDS + 2.0), (
        "what else is not shown may be judged by then"
    )
    assert judge_absence(missing["1"], NOW + DISPUTE_SECONDS + 2.0) is AbsenceVerdict.LIVES
    assert absences(missing, jobs, table(job("1"), job("2"))) == {}


@pytest.mark.parametrize(
    ("heard", "state", "more", "disputed"),
    [
        (1.0, JobState.COMPLETED, {}, True),
        (1.0, JobState.CANCELLED, {}, True),
        (END_QUIET_SECONDS + 1.0, JobState.COMPLETED, {}, False),
        (None, JobState.COMPLETED, {}, False),
        (1.0, JobState.NODE_FAIL, {}, False),
        (1.0, JobState.COMPLETED, {"leaving": True}, False),
    ],
)
def test_an_end_that_heartbeats_contradict_is_not_believed_at_once(
    heard: float | None, state: JobState, more: dict[str, bool], disputed: bool
) -> None:
    jobs = known("1", heard_at=None if heard is None else NOW - heard, **more)
    missing = absences({}, jobs, table(job("1", state)))
    assert contradicted_ends(missing.values(), NOW) == (["1"] if disputed else [])


def test_a_job_under_another_id_than_sbatch_printed_is_not_missed() -> None:
    (wrong,) = known("99", owner="ours", was_seen=False)
    assert absences({}, [wrong], table(job("7", comment="ours"))) == {}
    assert absences({}, [wrong], table(job("7", comment="others"))).keys() == {"99"}
