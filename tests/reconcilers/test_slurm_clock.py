"""Slurm's clock differs from the server's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollyard.reconcilers.missing_jobs import KnownJob
from rollyard.reconcilers.slurm_clock import TOLERANCE_SECONDS, clock_lead, on_our_clock
from rollyard.slurm.base import JobListing
from tests.support.make import job, listing

NOW = 1_000_000.0


def table(*leads: float) -> JobListing:
    """A table by a clock that is ahead: job i was submitted at NOW, and ends an hour later."""
    times = [{"submit_time": NOW + lead, "start_time": NOW + lead, "end_time": NOW + 3600 + lead} for lead in leads]
    return listing(*(replace(job(str(i)), **each) for i, each in enumerate(times)), at=NOW)


def known(count: int) -> list[KnownJob]:
    return [KnownJob(str(i), intended_at=NOW) for i in range(count)]


@pytest.mark.parametrize("lead", [180.0, -180.0, 7200.0])
def test_times_of_a_clock_that_is_minutes_ahead_or_behind_are_by_our_clock(lead: float) -> None:
    theirs = table(lead, lead, lead + 20.0)
    assert clock_lead(known(3), theirs) == lead
    ours = on_our_clock(theirs, lead)
    assert ours.jobs["0"].end_time == NOW + 3600
    assert ours.jobs["0"].start_time == ours.jobs["0"].submit_time == NOW


@pytest.mark.parametrize("lead", [0.0, -1.0, TOLERANCE_SECONDS])
def test_a_slow_submit_is_no_difference_of_clocks(lead: float) -> None:
    assert clock_lead(known(1), table(lead)) == 0.0


def test_without_a_job_of_ours_and_by_a_requeued_one_nothing_is_known() -> None:
    assert clock_lead([], table(600.0)) == 0.0
    requeued = {"0": replace(table(600.0).jobs["0"], restart_count=1)}
    assert clock_lead(known(1), JobListing(NOW, requeued)) == 0.0
