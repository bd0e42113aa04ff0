"""Jobs that we know and that Slurm's queue does not show: whether they are gone, or the table is wrong. Pure.

squeue can answer with its header alone, with a table that is cut at a row's end, or with an older answer, all with exit code
0. It is one witness. The heartbeat of the process that is bound to the job is another, accounting a third.

| heard of since it is missing | accounting | verdict |
|---|---|---|
| yes or no | it has ended | gone |
| yes | anything else | lives, for as long as it is heard of |
| no | it lives | lives, for DISPUTE_SECONDS at most: slurmdbd is behind where slurmctld told it nothing |
| no | no answer | nothing is concluded for DISPUTE_SECONDS |
| no | knows nothing of it | nothing is concluded for ABSENT_SECONDS; for a job that we are ending, not even so long |

A job that ran and is shown as waiting again, without a restart, is judged in the same way: the table is an older one, or
slurmctld has lost what it knew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from rollyard.slurm.base import Job, JobState, Snapshot

MIN_LOOKUPS = 2
"""One look-up may be wrong by itself."""
ABSENT_SECONDS = 20.0
"""Several heartbeats of a node agent, and time to come back after a restart of the server."""
DISPUTE_SECONDS = 180.0
MANY_SHARE = 3
"""Number of jobs from which on more than half of them are not missed one by one."""


class AbsenceVerdict(Enum):
    WAIT = auto()
    """Nothing may be concluded yet."""
    LIVES = auto()
    """The table is contradicted."""
    BELIEVED = auto()
    """It is as the table says."""


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job of ours that lives as far as we know."""

    id: str
    is_running: bool = True
    restart_count: int = 0
    heard_at: float | None = None
    """When the process bound to it was last heard of (Unix seconds)."""
    since: float = 0.0
    """A look-up begun before may lack it (Unix seconds)."""
    leaving: bool = False
    """We are ending it."""


@dataclass(frozen=True, slots=True)
class Absence:
    """One job that a table should show and does not, over several look-ups."""

    job: KnownJob
    since: float
    """When the first look-up without it began (Unix seconds)."""
    lookups: int = 1
    rewound: bool = False
    """It is shown, but as it was before."""
    asked_at: float | None = None
    """When accounting was asked last (Unix seconds)."""
    accounting_state: Job | None = None
    """The job as accounting knows it; None where it does not."""
    accounting_error: str = ""
    """Why accounting gave no answer; empty where it did."""

    def with_accounting(self, at: float, account: Job | None, silence: str = "") -> Absence:
        return replace(self, asked_at=at, accounting_state=account, accounting_error=silence)

    def quiet_seconds(self, now: float) -> float:
        """Seconds since it was last heard of, at most since it is missing."""
        return now - max(self.since, self.job.heard_at or 0.0)

    def is_heard(self, now: float) -> bool:
        heard = self.job.heard_at is not None and self.job.heard_at > self.since
        return heard and self.quiet_seconds(now) < ABSENT_SECONDS

    @property
    def is_contradicted(self) -> bool:
        """Accounting contradicts the table."""
        if self.accounting_state is None or self.accounting_state.state.ended:
            return False
        return not (self.rewound and self.accounting_state.state is JobState.PENDING)


def absences(before: Mapping[str, Absence], known: Iterable[KnownJob], table: Snapshot) -> dict[str, Absence]:
    """Jobs that this table misses, with how often and since when; `before` is what the last one missed."""
    found = {}
    for job in known:
        shown = table.jobs.get(job.id)
        rewound = shown is not None and _is_rewound(job, shown)
        if job.since >= table.taken_at or (shown is not None and not rewound):
            continue
        old = before.get(job.id)
        if old is None:
            found[job.id] = Absence(job, table.taken_at, rewound=rewound)
        else:
            found[job.id] = replace(old, job=job, lookups=old.lookups + 1, rewound=rewound)
    return found


def _is_rewound(job: KnownJob, shown: Job) -> bool:
    return job.is_running and shown.state is JobState.PENDING and shown.restart_count <= job.restart_count


def judge_absence(absence: Absence, now: float) -> AbsenceVerdict:
    """Whether the table is right about this job, by the table above."""
    if absence.lookups < MIN_LOOKUPS:
        return AbsenceVerdict.WAIT
    if absence.accounting_state is not None and absence.accounting_state.state.ended:
        return AbsenceVerdict.BELIEVED
    if absence.is_heard(now):
        return AbsenceVerdict.LIVES
    if absence.is_contradicted:
        return AbsenceVerdict.LIVES if absence.quiet_seconds(now) < DISPUTE_SECONDS else AbsenceVerdict.BELIEVED
    if absence.asked_at is None or absence.accounting_error:
        patience = DISPUTE_SECONDS
    else:
        patience = 0.0 if absence.job.leaving else ABSENT_SECONDS
    return AbsenceVerdict.WAIT if absence.quiet_seconds(now) < patience else AbsenceVerdict.BELIEVED


def disputed_absences(missing: Iterable[Absence], now: float) -> list[Absence]:
    """Those about which the table is not believed."""
    return [a for a in missing if judge_absence(a, now) is not AbsenceVerdict.BELIEVED]


def is_incomplete(missing: Iterable[Absence], now: float) -> bool:
    """Whether what is not in the table may be there all the same. One job alone cannot cast doubt on all others for ever."""
    return any(now - a.since < DISPUTE_SECONDS for a in disputed_absences(missing, now))


def why_doubted(known: Collection[KnownJob], missing: Mapping[str, Absence], now: float) -> str:
    """Why nothing at all is to be concluded from a table; empty where it is good, or lacks a few jobs only.

    It lacks all of the jobs, or more than half of several, beyond those whose end is known; or it is an older one.
    """
    doubtful = [a for a in disputed_absences(missing.values(), now) if not a.job.leaving]
    settled = {id for id, a in missing.items() if judge_absence(a, now) is AbsenceVerdict.BELIEVED}
    expected = [k for k in known if not k.leaving and k.id not in settled]
    if rewound := [a for a in doubtful if a.rewound]:
        which = f"job {rewound[0].job.id} ran and now appears as pending"
        more = f", and so are {len(rewound) - 1} others" if len(rewound) > 1 else ""
        return f"squeue's answer is older than an earlier one: {which}{more}; {_witnesses(rewound, now)}"
    absent, total = len(doubtful), len(expected)
    if absent and (absent == total or (total >= MANY_SHARE and 2 * absent > total)):
        return f"{absent} of {total} jobs missing from squeue; {_witnesses(doubtful, now)}"
    return ""


def why_not_gone(absence: Absence, now: float) -> str:
    """One sentence about a job whose absence alone is not believed."""
    since = "appears as pending again" if absence.rewound else "is missing from squeue"
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
