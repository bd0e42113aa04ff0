"""Slurm's reasons why a job waits, in words for people. Pure. (man squeue, JOB REASON CODES)"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNKNOWN = "None"
"""Slurm's word for a job without a reason."""
_MEANINGS = {
    UNKNOWN: "Slurm has not considered it yet",
    "BadConstraints": "no node can ever satisfy spec.allocation",
    "BeginTime": "its start time is in the future",
    "Cleaning": "Slurm still cleans up after its last run",
    "Dependency": "it starts when the job that it replaces has ended",
    "DependencyNeverSatisfied": "it waits for something that can no longer happen",
    "InvalidAccount": "spec.allocation.account is not known to Slurm",
    "InvalidQOS": "spec.allocation.qos is not known to Slurm, or not allowed there",
    "JobArrayTaskLimit": "its array may run no more tasks at once",
    "JobHeldAdmin": "an administrator holds it; Rollyard leaves it held",
    "JobHeldUser": "a user holds it; `scontrol release` lets it continue",
    "JobHoldMaxRequeue": "Slurm requeued it too often and holds it; `scontrol release` lets it continue",
    "Licenses": "no licence is free",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition accepts no jobs",
    "PartitionNodeLimit": "its partition does not allow this spec.allocation.nodes",
    "PartitionTimeLimit": "spec.allocation.timeLimit is above the limit of its partition",
    "Priority": "other jobs have a higher priority",
    "Prolog": "Slurm prepares its node",
    "QOSNotAllowed": "spec.allocation.qos is not allowed for its account or partition",
    "QOSUsageThreshold": "the usage is above the threshold of its QOS",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun or is full",
    "ReservationDeleted": "its reservation was deleted",
    "Resources": "nodes that it could run on are busy",
    "launch failed requeued held": "its start on a node failed and Slurm holds it; `scontrol release` lets it continue",
}
_SENTENCES = {"Nodes required for job are DOWN": "ReqNodeNotAvail"}
"""Sentence that Slurm shows instead of a word -> the word."""
_LIMIT = re.compile(
    r"(QOS(?!NotAllowed)|Assoc|Max)\w*|PartitionTimeLimit|PartitionNodeLimit|Licenses|JobArrayTaskLimit"
)
_TRANSIENT = {UNKNOWN, "Priority", "Resources", "Prolog", "Cleaning", "BeginTime", "Dependency"}
_LIMITED_THING = (
    (r"Billing", "billing"),
    (r"Energy", "energy"),
    (r"GRES", "GPUs or other gres"),
    (r"BB", "burst buffer"),
    (r"Licen", "licences"),
    (r"Mem", "memory"),
    (r"Node", "nodes"),
    (r"CPU|Cpu", "CPUs"),
    (r"Submit", "submitted jobs"),
    (r"Wall|TimeLimit", "walltime"),
    (r"Job(s|Limit)", "running jobs"),
)
_LIMITED_BY = (
    ("PerUser", "a user "),
    ("PerAccount", "an account "),
    ("PerJob", "one job "),
    ("Grp", "all its jobs together "),
)


@dataclass(frozen=True, slots=True)
class PendingReason:
    """Slurm's reason why a job waits."""

    text: str
    """Text that Slurm shows, such as `ReqNodeNotAvail, UnavailableNodes:n[1-4]`; empty if there is none."""

    @property
    def word(self) -> str:
        """Slurm's word in the text; UNKNOWN if the text is empty."""
        first = self.text.strip("() ").partition(",")[0]
        spaced = first.replace("_", " ")
        return _SENTENCES.get(spaced, spaced if spaced in _MEANINGS else first) or UNKNOWN

    @property
    def is_limit(self) -> bool:
        """Whether the job waits because of a limit."""
        return _LIMIT.fullmatch(self.word) is not None

    @property
    def is_transient(self) -> bool:
        """Whether the reason is one that usually passes by itself, such as Priority. False for limits and holds, which may
        last."""
        return self.word in _TRANSIENT

    @property
    def meaning(self) -> str:
        """Explanation for people, as half a sentence; empty if there is none for this word."""
        return _MEANINGS.get(self.word) or (_limit_text(self.word) if self.is_limit else "")

    def __str__(self) -> str:
        """Slurm's text and its explanation: `Priority (other jobs have a higher priority)`."""
        return f"{self.text or UNKNOWN}{f' ({self.meaning})' if self.meaning else ''}"


def _limit_text(name: str) -> str:
    """Explanation of a limit: `QOSMaxGRESPerUser` -> `the QOS allows a user no more GPUs or other gres`."""
    whose = "the account" if name.startswith("Assoc") else "the QOS"
    what = next((words for pattern, words in _LIMITED_THING if re.search(pattern, name)), None)
    if what is None:
        return f"a limit of {whose} is reached"
    if re.match(r"(QOS|Assoc)Min", name):
        return f"{whose} requires more {what} in each job"
    amount = f"minutes of {what}" if "Minutes" in name else what
    whom = next((words for part, words in _LIMITED_BY if part in name), "")
    return f"{whose} allows {whom}no more {amount}"
