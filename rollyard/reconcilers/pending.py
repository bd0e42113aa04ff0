"""Why jobs wait, in Slurm's word and in ours. Pure. (man squeue, JOB REASON CODES)"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.kinds.allocation import Allocation

_MEANINGS = {
    "Priority": "other jobs are before it",
    "Resources": "nodes that it could run on are busy",
    "Dependency": "it starts when the job that it replaces has ended",
    "BeginTime": "its start time has not come",
    "JobHeldAdmin": "held by an administrator; that is not undone here",
    "JobHeldUser": "held by hand; `scontrol release` lets it go on",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs",
    "PartitionTimeLimit": "spec.allocation.timeLimit is above what its partition allows",
    "PartitionNodeLimit": "spec.allocation.nodes is outside of what its partition allows",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun or is full",
    "Licenses": "no licence is free",
    "BadConstraints": "no node can ever fulfil what spec.allocation asks for",
    "InvalidAccount": "spec.allocation.account is not known to Slurm",
    "InvalidQOS": "spec.allocation.qos is not known to Slurm, or not allowed there",
    "NodeDown": "a node that it needs is down",
    "None": "Slurm has not looked at it yet",
    "": "Slurm has not looked at it yet",
}
_LIMIT = re.compile(r"^(QOS|Assoc|Max)\w*$|^(PartitionTimeLimit|PartitionNodeLimit|Licenses)$")


def is_limit(reason: str) -> bool:
    """Whether it is a limit that stands in the way, and not merely the order of the queue."""
    return bool(_LIMIT.match(reason))


def meaning(reason: str) -> str:
    """Half a sentence for people; empty where Slurm's word says it all."""
    word = reason.partition(",")[0].strip("()")
    if word in _MEANINGS:
        return _MEANINGS[word]
    if is_limit(word):
        whose = (
            "the QOS" if word.startswith("QOS") else "the account or user" if word.startswith("Assoc") else "the user"
        )
        return f"a limit of {whose} is reached"
    return ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What of a pool waits in Slurm's queue."""

    reason: str
    """The word that most of them wait for."""
    message: str
    """Such as `3 of 8 jobs pending: QOSMaxGRESPerUser (a limit of the QOS is reached)`."""


def waiting(allocations: Sequence[Allocation]) -> Waiting | None:
    """None when no job waits."""
    live = [a for a in allocations if not a.status.ended]
    pending = [a for a in live if a.status.job_state == "PENDING"]
    if not pending:
        return None
    reasons = Counter(a.status.reason or "None" for a in pending)
    words = ", ".join(_counted(word, count, len(reasons)) for word, count in reasons.most_common())
    starts = [a.status.start_time for a in pending if a.status.start_time is not None]
    expected = f"; the first is expected to start at {min(starts):%Y-%m-%d %H:%M:%S} UTC" if starts else ""
    return Waiting(reasons.most_common(1)[0][0], f"{len(pending)} of {len(live)} jobs pending: {words}{expected}")


def _counted(word: str, count: int, kinds: int) -> str:
    why = meaning(word)
    return f"{f'{count} ' if kinds > 1 else ''}{word}{f' ({why})' if why else ''}"
