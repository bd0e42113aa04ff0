"""Jobs, processes, the store and accounting as they really are, read without the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollyard.kinds.values.job_state import JobState
from tests.support.cluster import Cluster
from tests.support.yard import Yard

QUEUE = ("JobArrayID", "Comment", "State", "Reason", "EndTime", "NodeList")
PROCESSES = {"RolloutPool": "node-agent", "InferencePool": "inference-server"}
COUNTS = ("Queued", "INIT", "RUN", "EVAL", "Completed", "Truncated", "Failed", "InfraFailed", "Cancelled")
NEVER = ("N/A", "Unknown", "None", "")
"""Words of Slurm for no time."""


@dataclass(frozen=True)
class QueuedJob:
    """A job of ours as Slurm, or the local driver, shows it."""

    state: str
    reason: str
    end: float | None
    node: str


@dataclass(frozen=True)
class Account:
    """One run of a job in Slurm's accounting."""

    state: str
    end: float | None
    node: str
    exit_code: int
    """As a shell shows it."""


@dataclass
class World:
    """State with which the page has to agree."""

    jobs: Mapping[str, QueuedJob]
    agents: Mapping[str, set[str]]
    """Kind of pool -> names of the allocations whose process lives."""
    counts: Mapping[str, int]
    """Word of the page -> number of rollouts in the store."""
    rollout: Mapping[str, Any] | None = None
    """Row of the newest rollout that has not ended; if there is none, of the one that ended last."""
    conditions: Mapping[tuple[str, str], Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    """Kind and name of a pool -> type -> status and reason of its conditions in the store."""
    accounts: Mapping[str, Sequence[Account]] | None = None
    """Runs of all jobs; None without accounting."""


async def read_world(yard: Yard) -> World:
    cluster = yard.cluster
    jobs = await (asyncio.to_thread(squeue, cluster) if cluster else _local_jobs(yard))
    agents = {kind: _names(yard, word) for kind, word in PROCESSES.items()}
    counts, rollout, conditions = await asyncio.to_thread(_stored, yard.data / "rollyard.db")
    told = cluster is not None and "slurmdbd" in cluster.pids
    accounts = await asyncio.to_thread(_sacct, cluster) if cluster is not None and told else None
    return World(jobs, agents, counts, rollout, conditions, accounts)


def squeue(cluster: Cluster) -> dict[str, QueuedJob]:
    fields = ",".join(f"{name}:~|~" for name in QUEUE)
    found = {}
    for line in _utc(cluster, "squeue", "-h", "-r", "-t", "all", "-O", fields):
        id, comment, state, reason, end, node = (part.strip() for part in line.split("~|~")[: len(QUEUE)])
        if comment.startswith("rollyard:") and not comment.startswith("rollyard:another:"):
            found[id] = QueuedJob(state, "" if reason in ("None", "(null)") else reason, _unix(end), node)
    return found


def _sacct(cluster: Cluster) -> dict[str, list[Account]]:
    found: dict[str, list[Account]] = {}
    for line in _utc(cluster, "sacct", "-a", "-n", "-P", "-X", "-D", "-o", "JobID,State,End,NodeList,ExitCode"):
        id, state, end, node, ended = line.split("|")
        code, signal = (int(part) for part in ended.split(":"))
        found.setdefault(id, []).append(Account(state.split()[0], _unix(end), node, 128 + signal if signal else code))
    return found


def _utc(cluster: Cluster, *command: str) -> list[str]:
    """Return the lines of a command of Slurm that prints times in UTC."""
    return cluster.run("env", "TZ=UTC", "SLURM_TIME_FORMAT=standard", *command).splitlines()


def _unix(time: str) -> float | None:
    return None if time in NEVER else datetime.fromisoformat(time).replace(tzinfo=UTC).timestamp()


async def _local_jobs(yard: Yard) -> dict[str, QueuedJob]:
    jobs = await yard.jobs(live=False)
    return {j.id: QueuedJob(j.state, "" if j.reason == "None" else j.reason, j.end_time, j.node) for j in jobs}


def _names(yard: Yard, word: str) -> set[str]:
    """Names of the allocations whose node agent or model server lives."""
    found = set()
    for pid in yard.processes(word, "--allocation"):
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            found.add(Path(words[words.index("--allocation") + 1]).name.partition(".")[2])  # NAMESPACE.NAME
    return found


def _stored(database: Path) -> tuple[dict[str, int], dict[str, Any] | None, dict[Any, Any]]:
    counts: Counter[str] = Counter()
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as db:
        db.row_factory = sqlite3.Row
        query = "SELECT status, stage, count(*) FROM rollouts WHERE namespace = 'default' GROUP BY status, stage"
        for status, stage, number in db.execute(query):
            counts[stage if status == "Running" else status] += number
        order = "finished_at IS NULL DESC, finished_at DESC, seq DESC"
        row = db.execute(f"SELECT * FROM rollouts WHERE namespace = 'default' ORDER BY {order} LIMIT 1").fetchone()
        bodies = [json.loads(body) for (body,) in db.execute("SELECT body FROM objects WHERE kind LIKE '%Pool'")]
    conditions = {
        (pool["kind"], pool["metadata"]["name"]): {
            c["type"]: (c["status"], c["reason"]) for c in pool.get("status", {}).get("conditions", [])
        }
        for pool in bodies
    }
    return {word: counts[word] for word in COUNTS}, dict(row) if row is not None else None, conditions


def is_live(job: QueuedJob) -> bool:
    return not JobState(job.state).ended
