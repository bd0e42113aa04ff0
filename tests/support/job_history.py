"""Jobs with every outcome on a cluster, made by Slurm's own commands: each driver must read them alike."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from rollyard.kinds.values.job_state import JobState
from tests.support.cluster import Cluster

NAME = "rollyard-history-0"


@dataclass(frozen=True)
class Fate:
    state: JobState
    reasons: tuple[str, ...]
    exit_codes: frozenset[int | None] = frozenset({None})


class History:
    """Job id -> the expected outcome. The jobs stay unchanged for all tests of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.fates: dict[str, Fate] = {}
        self._out_of_time()
        self._on_a_lost_node()
        self._cancelled()
        self._waiting()
        self._arrays()

    def _submit(self, command: str, *options: str) -> str:
        return self._cluster.submit(command, f"--job-name={NAME}", "--comment=rollyard:h:1", "--no-requeue", *options)

    def _out_of_time(self) -> None:
        """Move the job's time limit forward: Slurm checks limits twice a minute, and none is shorter than one minute."""
        job = self._submit("sleep 1000", "--time=1")
        self._cluster.wait_for_state(job, "RUNNING")
        self._cluster.wait_for(lambda: self._ends_now(job))
        self.fates[job] = Fate(JobState.TIMEOUT, ("TimeLimit",), _codes(128 + 15))

    def _ends_now(self, job: str) -> bool:
        with contextlib.suppress(AssertionError):  # refused if slurmctld reads the request in a later second
            self._cluster.run("scontrol", "update", f"jobid={job}", "EndTime=now")
            return True
        return False

    def _on_a_lost_node(self) -> None:
        """Declare the node dead, without waiting until slurmctld misses a slurmd; later it is found alive again."""
        job = self._submit("sleep 1000", "--nodelist=n4")
        self._cluster.wait_for_state(job, "RUNNING")
        self._cluster.run("scontrol", "update", "nodename=n4", "state=down", "reason=it was said so")
        self._cluster.wait_for_state(job, "NODE_FAIL")
        self._cluster.wait_for(self._n4_is_back)
        # 128 + 1: 26.05; 1: its launch was not finished, as on a busy machine, where the reason may be lost too
        self.fates[job] = Fate(JobState.NODE_FAIL, ("NodeDown", ""), _codes(0, 1, 128 + 15, 128 + 1))

    def _n4_is_back(self) -> bool:
        with contextlib.suppress(AssertionError):  # the node is back already: its slurmd has registered
            self._cluster.run("scontrol", "update", "nodename=n4", "state=resume")
        return "idle" in self._cluster.run("sinfo", "-h", "-n", "n4", "-o", "%T")

    def _cancelled(self) -> None:
        job = self._submit("sleep 1000", "--begin=now+1hour")
        self._cluster.run("scancel", job)
        self.fates[job] = Fate(JobState.CANCELLED, ("BeginTime",), _codes(0))

    def _waiting(self) -> None:
        """Make pending jobs in the partition below, so that nothing waits behind them."""
        first = self._submit("sleep 10000", "--partition=low", "--nodelist=n4", "--exclusive", "--time=100")
        self._cluster.wait_for_state(first, "RUNNING")
        behind = self._submit("true", "--partition=low", "--nodelist=n4", "--exclusive")
        held = self._submit("true", "--hold")
        later = self._submit("true", "--begin=now+1hour")
        after = self._submit("true", f"--dependency=afterany:{first}")
        self.fates |= {
            first: Fate(JobState.RUNNING, ("",)),
            behind: Fate(JobState.PENDING, ("Resources",)),
            held: Fate(JobState.PENDING, ("JobHeldUser",)),
            later: Fate(JobState.PENDING, ("BeginTime",)),
            after: Fate(JobState.PENDING, ("Dependency",)),
        }

    def _arrays(self) -> None:
        """Make an array with ended, running and pending tasks in one record of Slurm's."""
        command = "[ $SLURM_ARRAY_TASK_ID != 0 ] || exit 3; sleep 10000"
        job = self._submit(command, "--array=0-7%2", "--partition=low", "--nodelist=n3")
        self._cluster.wait_for_state(f"{job}_0", "FAILED")
        self._cluster.wait_for_state(f"{job}_2", "RUNNING")
        self._cluster.run("scancel", f"{job}_5")  # a pending task leaves no trace
        for task in (3, 4, 6, 7):
            self.fates[f"{job}_{task}"] = Fate(JobState.PENDING, ("JobArrayTaskLimit",))
        self.fates |= {
            f"{job}_0": Fate(JobState.FAILED, ("NonZeroExitCode",), _codes(3)),
            f"{job}_1": Fate(JobState.RUNNING, ("",)),
            f"{job}_2": Fate(JobState.RUNNING, ("",)),
        }


def _codes(*codes: int) -> frozenset[int | None]:
    return frozenset(codes)
