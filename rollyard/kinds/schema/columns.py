"""Columns of each kind, for `rollyard get` and the API's Table. Except for events, NAME is first and AGE is last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import Condition, KindObject, get_condition
from rollyard.kinds.event import Event
from rollyard.kinds.foreign import CustomResourceDefinition, Namespace, Service
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolStatus
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.job_state import JobState

TROUBLE = {
    "EnoughMemory": "False",
    "ImagesReady": "False",
    "ImagesWritable": "False",
    "NodesUsable": "False",
    "RenewalBlocked": "True",
    "SlurmReachable": "False",
    "ToolCalls": "False",
}
"""Conditions that can report trouble while Ready is True, with the status that does so."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    description: str
    cell: Callable[[Any, datetime], str]
    """Function of (object, now) that returns the cell's text."""
    wide: bool = False
    """Whether the column is shown only with -o wide."""


def age(since: datetime | None, now: datetime) -> str:
    """Age in one unit, rounded down: seconds below 2 minutes, minutes below 2 hours, hours below 2 days, else days.
    Examples: 5s, 12m, 3h, 4d."""
    if since is None:
        return "<unknown>"
    seconds = max(0, int((now - since).total_seconds()))
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // unit}{name}"
    return f"{seconds // 86400}d"


def _ready(pool: InferencePool | RolloutPool) -> str:
    return f"{ready_count(pool.status)}/{pool.status.replicas.desired}"


def ready_count(status: PoolStatus) -> int:
    """Number of ready allocations that serve. It is 0 where enough are ready and the pool is not: what the pool lacks,
    such as its InferencePool, all of them lack."""
    found = get_condition(status.conditions, "Ready")
    is_ready = found is not None and found.status == "True"
    return status.replicas.ready if is_ready or status.replicas.ready < status.replicas.desired else 0


def pool_reason(conditions: list[Condition]) -> str:
    """Reason of Ready. If Ready is True, the conditions that report trouble follow: `AllReady,ImagesReady=False`."""
    found = get_condition(conditions, "Ready")
    if found is None:
        return "Unknown"
    troubles = [f"{c.type}={c.status}" for c in conditions if TROUBLE.get(c.type) == c.status]
    return ",".join([found.reason, *(troubles if found.status == "True" else ())])


_NAME = Column("NAME", "Name of the object.", lambda o, now: o.metadata.name)
_AGE = Column("AGE", "Time since the object was created.", lambda o, now: age(o.metadata.creation_timestamp, now))
_POOL = [
    Column("READY", "Ready allocations that serve / desired allocations.", lambda o, now: _ready(o)),
    Column(
        "UP-TO-DATE", "Ready allocations made from the present spec.", lambda o, now: str(o.status.replicas.updated)
    ),
    Column(
        "STATUS",
        "Reason of the condition Ready, and other conditions that report trouble.",
        lambda o, now: pool_reason(o.status.conditions),
    ),
]
_COLUMNS: dict[type[KindObject], list[Column]] = {
    InferencePool: [
        _NAME,
        *_POOL,
        Column(
            "SESSIONS",
            "Live sessions on the pool's endpoints, of rollouts and of external agents.",
            lambda o, now: str(sum(e.sessions for e in o.status.endpoints)),
        ),
        Column("MODEL", "Name of the model in the engines' API.", lambda o, now: o.spec.model.served_name),
        Column("WEIGHTS", "Served weights version, and the one being loaded.", lambda o, now: _weights(o)),
        Column("PATH", "Folder of the model.", lambda o, now: o.spec.model.path, wide=True),
        _AGE,
    ],
    RolloutPool: [
        _NAME,
        *_POOL,
        Column("QUEUED", "Queued rollouts.", lambda o, now: str(sum(s.queued for s in o.status.stages.values()))),
        Column(
            "INIT", "Busy / all stage workers of INIT, + rollouts waiting for one.", lambda o, now: _stage(o, "INIT")
        ),
        Column("RUN", "Busy / all stage workers of RUN, + rollouts waiting for one.", lambda o, now: _stage(o, "RUN")),
        Column(
            "EVAL", "Busy / all stage workers of EVAL, + rollouts waiting for one.", lambda o, now: _stage(o, "EVAL")
        ),
        _AGE,
    ],
    Allocation: [
        _NAME,
        Column("POOL", "Pool of the allocation.", lambda o, now: o.spec.pool.name),
        Column("READY", "Whether the process in the job is healthy.", lambda o, now: str(o.status.ready)),
        Column("JOB", "Slurm's job id.", lambda o, now: o.status.job_id or "<none>"),
        Column("STATE", "Slurm's job state.", lambda o, now: o.status.job_state or "<none>"),
        Column("NODE", "Node of the job.", lambda o, now: o.status.node or "<none>"),
        Column(
            "START",
            "Start of the job; while it is pending, the expected start.",
            lambda o, now: _start(o, now),
            wide=True,
        ),
        Column(
            "END", "End of the job; while it runs, the end of its walltime.", lambda o, now: _end(o, now), wide=True
        ),
        Column(
            "REPLACES",
            "Allocation whose successor this one is.",
            lambda o, now: o.spec.successor_of or "<none>",
            wide=True,
        ),
        Column("EXIT", "Exit code of the job.", lambda o, now: _exit(o), wide=True),
        Column(
            "REASON",
            "Reason why the job waits, or how it ended.",
            lambda o, now: o.status.waiting_reason or "<none>",
            wide=True,
        ),
        _AGE,
    ],
    Event: [
        Column("LAST SEEN", "Time since the event last happened.", lambda o, now: age(o.last_timestamp, now)),
        Column("TYPE", "Type of the event: Normal or Warning.", lambda o, now: o.type),
        Column("REASON", "Reason in one word.", lambda o, now: o.reason),
        Column(
            "OBJECT",
            "Object of the event.",
            lambda o, now: f"{o.involved_object.kind.lower()}/{o.involved_object.name}",
        ),
        Column("COUNT", "Number of times that the event happened.", lambda o, now: str(o.count), wide=True),
        Column("MESSAGE", "What happened.", lambda o, now: o.message),
    ],
    Namespace: [_NAME, Column("STATUS", "Always Active.", lambda o, now: o.status["phase"]), _AGE],
    Service: [_NAME, _AGE],
    CustomResourceDefinition: [
        _NAME,
        Column("CREATED AT", "Always the same time.", lambda o, now: o.dump_metadata()["creationTimestamp"]),
    ],
}


def _weights(pool: InferencePool) -> str:
    current, operation = pool.status.weights.current, pool.status.weights.operation
    version = current.version if current is not None else "<unknown>"
    return f"{version}->{operation.target.version}" if operation is not None and operation.is_running else version


def _stage(pool: RolloutPool, stage: str) -> str:
    status = pool.status.stages.get(stage)
    return status.text if status else "0/0"


def _start(allocation: Allocation, now: datetime) -> str:
    start = allocation.status.start_time
    if start is None:
        return "<unknown>"
    return f"in {age(now, start)}" if allocation.status.job_state == JobState.PENDING else f"{age(start, now)} ago"


def _end(allocation: Allocation, now: datetime) -> str:
    end = allocation.status.end_time
    if end is None or allocation.status.job_state == JobState.PENDING:
        return "<unknown>"
    distance = f"{age(end, now)} ago" if end <= now else f"in {age(now, end)}"
    return f"{end.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({distance})"


def _exit(allocation: Allocation) -> str:
    code = allocation.status.exit_code
    return str(code) if code is not None else "<none>"


def columns(kind: type[KindObject]) -> list[Column]:
    return _COLUMNS[kind]
