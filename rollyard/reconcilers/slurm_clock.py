"""Difference between Slurm's clock and this server's, and times of jobs by this server's clock. Pure.

Slurm's times decide when a successor is submitted and when a failed allocation is made again. If the clocks differ by
minutes, both would be wrong by minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from rollyard.reconcilers.missing_jobs import KnownJob
from rollyard.slurm.base import Job, JobListing

TOLERANCE_SECONDS = 60.0
"""Differences up to this are not corrected: between a submit's intent and Slurm's record of it lies the submit itself, which
may take LIMIT_SECONDS."""


def clock_lead(known: Iterable[KnownJob], listing: JobListing) -> float:
    """Return by how many seconds Slurm's clock is ahead of ours; 0.0 if no job shows it or the clocks agree.

    Each job shows it: Slurm's submit time minus our time of the submit. Slurm changes the submit time of a requeued job,
    so such a job does not count.
    """
    leads = [
        job.submit_time - one.intended_at
        for one in known
        if one.intended_at is not None
        and (job := listing.jobs.get(one.id)) is not None
        and job.submit_time is not None
        and job.restart_count == 0
    ]
    lead = median(leads) if leads else 0.0
    return lead if abs(lead) > TOLERANCE_SECONDS else 0.0


def on_our_clock(listing: JobListing, lead: float) -> JobListing:
    if not lead:
        return listing
    return replace(listing, jobs={id: job_on_our_clock(job, lead) for id, job in listing.jobs.items()})


def job_on_our_clock(job: Job, lead: float) -> Job:
    submit, start, end = (None if t is None else t - lead for t in (job.submit_time, job.start_time, job.end_time))
    return replace(job, submit_time=submit, start_time=start, end_time=end)
