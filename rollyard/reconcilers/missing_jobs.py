"""Known jobs that squeue's table lacks or shows as ended: decides whether the table is right or wrong. Pure.

squeue can print only its header, a table that is cut after some row, or an old table, each time with exit code 0. So
squeue is only one source. The second source is the heartbeat of the process that is bound to the job, and the third is
accounting.

| heartbeat after the job went missing | accounting | verdict |
|---|---|---|
| yes or no | it has ended | gone |
| yes | anything else | lives, for as long as heartbeats come |
| no | it lives | lives, for at most DISPUTE_SECONDS: slurmctld may have failed to report the job's end to slurmdbd |
| no | no answer | nothing is concluded for DISPUTE_SECONDS; then the job is gone |
| no | no record of it | nothing is concluded for ABSENT_SECONDS; then, or at once if we are ending the job, it is gone |

The same rules apply to a job that ran, if the table shows the job as pending without a restart. Either the table is
old, or slurmctld has lost the job's state. For such a job, the state pending in accounting counts as no record.

The table may also show a job as ended whose process reports. Accounting decides. Without its word, the job lives for as
long as heartbeats come. If they cease for END_QUIET_SECONDS, or the process closes its connection, the end is believed.
An exception are ends by a lost node: Slurm does not see what runs there, and its word counts at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import Job, JobListing

MIN_LOOKUPS = 2
"""A verdict requires at least this many tables in a row without the job. A single table may be wrong."""
ABSENT_SECONDS = 20.0
"""Time within which a node agent sends several heartbeats, or reconnects after a restart of the server."""
DISPUTE_SECONDS = 180.0
END_QUIET_SECONDS = 5.0
"""Time within which a process that lives sends more than one heartbeat."""
LOST_NODE = {JobState.NODE_FAIL, JobState.BOOT_FAIL}
MANY_JOBS = 3
"""If at least this many jobs are expected, a table that shows less than half of them is doubted as a whole."""


class AbsenceVerdict(Enum):
    WAIT = auto()
    """Nothing may be concluded yet."""
    LIVES = auto()
    """The job lives, because another source contradicts the table."""
    BELIEVED = auto()
    """The table is right."""


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job of ours that is alive according to our records."""

    id: str
    is_running: bool = True
    restart_count: int = 0
    heard_at: float | None = None
    """Unix seconds of the last heartbeat from the process bound to the job; None if there was none, or if the process
    is a node agent that is not connected."""
    since: float = 0.0
    """Unix seconds at which the job's submit was answered or failed; 0.0 if unknown. A table whose query began earlier
    may lack the job."""
    leaving: bool = False
    """True: we are ending the job."""
    intended_at: float | None = None
    """Unix seconds at which we began the job's submit; None if unknown."""
    owner: str = ""
    """Key by which the queue shows whose job it is (`Job.owner`)."""
    was_seen: bool = True
    """False: no table has shown the job yet, and no process has registered with it. sbatch may have printed a wrong id."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A known job that one or more tables in a row lack, show as pending although the job ran, or show as ended although
    its process reports."""

    job: KnownJob
    since: float
    """Unix seconds at which the query for the first of these tables began."""
    lookups: int = 1
    rewound: bool = False
    """True: the last table shows the job as pending although the job ran."""
    ended: JobState | None = None
    """End that the last table shows; None if it shows none."""
    asked_at: float | None = None
    """Unix seconds at which the last query to accounting ended."""
    accounting_state: Job | None = None
    """Accounting's record of the job; None if accounting has none, or has not answered the last query."""
    accounting_error: str = ""
    """Reason why accounting did not answer the last query; empty otherwise."""

    def with_accounting(self, at: float, account: Job | None, silence: str = "") -> Absence:
        return replace(self, asked_at=at, accounting_state=account, accounting_error=silence)

    def quiet_seconds(self, now: float) -> float:
        """Seconds since the last heartbeat, or since the job went missing; the shorter of the two times."""
        return now - max(self.since, self.job.heard_at or 0.0)

    def is_heard(self, now: float) -> bool:
        heard = self.job.heard_at is not None and self.job.heard_at > self.since
        return heard and self.quiet_seconds(now) < (END_QUIET_SECONDS if self.ended else ABSENT_SECONDS)

    @property
    def is_contradicted(self) -> bool:
        """Whether accounting contradicts the table."""
        if self.accounting_state is None or self.accounting_state.state.ended:
            return False
        return not (self.rewound and self.accounting_state.state is JobState.PENDING)


def absences(before: Mapping[str, Absence], known: Iterable[KnownJob], table: JobListing) -> dict[str, Absence]:
    """Known jobs that this table lacks, shows as pending although they ran, or shows as ended although they report, by id.

    `before`: result for the previous table. Counts and times continue from this result.
    """
    found = {}
    for job in known:
        shown = table.jobs.get(job.id)
        rewound = shown is not None and _is_rewound(job, shown)
        ended = shown.state if shown is not None and _reports_after_end(job, shown, table.taken_at) else None
        if job.since >= table.taken_at or (shown is not None and not rewound and ended is None):
            continue
        if not job.was_seen and job.owner and table.by_owner(job.owner):
            continue  # the queue shows the allocation's job under another id than sbatch printed
        old = before.get(job.id)
        if old is None:
            found[job.id] = Absence(job, table.taken_at, rewound=rewound, ended=ended)
        else:
            found[job.id] = replace(old, job=job, lookups=old.lookups + 1, rewound=rewound, ended=ended)
    return found


def _is_rewound(job: KnownJob, shown: Job) -> bool:
    return job.is_running and shown.state is JobState.PENDING and shown.restart_count <= job.restart_count


def _reports_after_end(job: KnownJob, shown: Job, at: float) -> bool:
    if not shown.state.ended or shown.state in LOST_NODE or job.leaving or job.heard_at is None:
        return False
    return at - job.heard_at < END_QUIET_SECONDS


def contradicted_ends(missing: Iterable[Absence], now: float) -> list[str]:
    """Return the ids of the jobs that the last table shows as ended, and whose end is not believed yet."""
    return [a.job.id for a in missing if a.ended and judge_absence(a, now) is not AbsenceVerdict.BELIEVED]


def judge_absence(absence: Absence, now: float) -> AbsenceVerdict:
    """Decide whether the table is right about this job, by the rules in this module's docstring."""
    over = absence.accounting_state is not None and absence.accounting_state.state.ended
    if absence.ended:
        heard = AbsenceVerdict.LIVES if absence.is_heard(now) else AbsenceVerdict.WAIT
        return AbsenceVerdict.BELIEVED if over else heard
    if absence.lookups < MIN_LOOKUPS:
        return AbsenceVerdict.WAIT
    if over:
        return AbsenceVerdict.BELIEVED
    if absence.is_heard(now):
        return AbsenceVerdict.LIVES
    if absence.is_contradicted:
        return AbsenceVerdict.LIVES if absence.quiet_seconds(now) < DISPUTE_SECONDS else AbsenceVerdict.BELIEVED
    if absence.asked_at is None or absence.accounting_error:
        limit = DISPUTE_SECONDS
    else:
        limit = 0.0 if absence.job.leaving else ABSENT_SECONDS
    return AbsenceVerdict.WAIT if absence.quiet_seconds(now) < limit else AbsenceVerdict.BELIEVED


def disputed_absences(missing: Iterable[Absence], now: float) -> list[Absence]:
    """Absences that may be errors of the table."""
    return [a for a in missing if judge_absence(a, now) is not AbsenceVerdict.BELIEVED]


def is_incomplete(missing: Iterable[Absence], now: float) -> bool:
    """Whether the table may lack jobs that exist. An absence counts for DISPUTE_SECONDS, and no longer."""
    return any(now - a.since < DISPUTE_SECONDS for a in disputed_absences(missing, now))


def why_doubted(known: Collection[KnownJob], missing: Mapping[str, Absence], now: float) -> str:
    """Reason to conclude nothing at all from a table; empty if the table is good, or lacks only a few jobs.

    A table is doubted in three cases: it shows a job as pending although the job ran; all expected jobs are missing; or
    more than half of at least MANY_JOBS expected jobs are missing. A job that is shown as ended counts as missing once a
    heartbeat has contradicted its end. Jobs that are believed to be gone, and jobs that we are ending, are not expected.
    """
    doubtful = [
        a
        for a in disputed_absences(missing.values(), now)
        if not a.job.leaving and (a.ended is None or a.is_heard(now))
    ]
    settled = {id for id, a in missing.items() if judge_absence(a, now) is AbsenceVerdict.BELIEVED}
    expected = [k for k in known if not k.leaving and k.id not in settled]
    if rewound := [a for a in doubtful if a.rewound]:
        which = f"job {rewound[0].job.id} ran and now appears as pending"
        more = f", and so are {len(rewound) - 1} others" if len(rewound) > 1 else ""
        return f"squeue's answer is older than an earlier one: {which}{more}; {_witnesses(rewound, now)}"
    absent, total = len(doubtful), len(expected)
    if absent and (absent == total or (total >= MANY_JOBS and 2 * absent > total)):
        how = "shown as ended by" if all(a.ended for a in doubtful) else "missing from"
        return f"{absent} of {total} jobs {how} squeue; {_witnesses(doubtful, now)}"
    return ""


def why_not_gone(absence: Absence, now: float) -> str:
    """Text that says why a missing job is not believed to be gone."""
    since = "appears as pending again" if absence.rewound else "is missing from squeue"
    since = f"is {absence.ended} according to squeue" if absence.ended else since
    return f"job {absence.job.id} {since}; {_witnesses([absence], now)}"


def _witnesses(missing: Collection[Absence], now: float) -> str:
    heard, accounted = any(a.is_heard(now) for a in missing), any(a.is_contradicted for a in missing)
    they, run = ("they", "run") if len(missing) > 1 else ("it", "runs")
    if heard and accounted:
        return f"heartbeats and accounting say {they} {run}"
    if heard:
        return f"heartbeats say {they} {run}"
    if accounted:
        return f"accounting says {they} {run}"
    silence = next((a.accounting_error for a in missing if a.accounting_error), "")
    if silence:
        return f"accounting does not answer ({silence})"
    return "a second look-up will confirm that"
