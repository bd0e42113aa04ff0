"""`Allocation`: one Slurm job of Rollyard, and the template from which a pool makes its allocations."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from rollyard.core.errors import Refusal
from rollyard.kinds.base import Condition, KindModel, KindObject, ObjectKey, StatusModel
from rollyard.kinds.values.hostlist import expand
from rollyard.kinds.values.job_state import JobState
from rollyard.kinds.values.quantity import Walltime, size_bytes
from rollyard.kinds.values.sbatch_directives import (
    Folder,
    Gres,
    Hosts,
    Line,
    Memory,
    Name,
    Names,
    Options,
    Shell,
    Variables,
    Word,
    gpus_in,
)
from rollyard.kinds.values.slurm_reasons import PendingReason

LIVE_STATES = frozenset(state for state in JobState if not state.ended)
SUBMITTED = "Submitted"
"""Type of the condition about a submit that Slurm did not answer at once. If Slurm answers at once, there is no such
condition."""
SUBMIT_REFUSED = "SubmitRefused"
"""Reason word in the allocation's `status.reason` and in the pool's conditions if Slurm refused the submit."""
LOG_OFFSET = "Rollyard-Log-Offset"
"""Header with the number of bytes of the whole output that come before the answer. A client that was cut off can
continue at its last offset."""
JOB_FIELDS = (
    "partition", "account", "qos", "nodes", "memory_per_cpu", "constraint", "nodelist", "exclude", "reservation", "licenses",
    "exclusive", "nice", "extra_directives",
)  # fmt: skip
"""Fields that describe a job to submit. A step runs in an existing job, so its template cannot set these fields."""


class AllocationTemplate(KindModel):
    """Resources and job options of one allocation; both kinds of pool use the same fields."""

    within: str | None = Field(default=None, pattern=r"^[1-9][0-9]*$")
    """Id of your running Slurm job. Allocations become steps of this job, and end with it; no other job is submitted."""
    partition: Names | None = None
    """Partition, or several separated by commas. Default: the site's default partition."""
    account: Name | None = None
    """Account to charge."""
    qos: Name | None = None
    """Quality of service."""
    nodes: int = Field(default=1, ge=1)
    """Number of nodes of one allocation. More than one is allowed only for a model server that spans nodes."""
    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs on each node."""
    gpu_type: Name | None = None
    """GPU type as the site calls it, such as a100. Default: any type."""
    gres: Gres | None = None
    """Other generic resources on each node, as in sbatch --gres: shard:2, or gpu:4 on sites that require this form for GPUs."""
    cpus_per_task: int = Field(default=1, ge=1)
    """CPU cores on each node."""
    memory: Memory | None = None
    """Memory of each node, such as 128G; 0 for the node's whole memory. Default: the partition's default."""
    memory_per_cpu: Memory | None = None
    """Memory for each CPU core, such as 4G. Set this or `memory`, not both."""
    time_limit: Walltime = "08:00:00"
    """Walltime in Slurm's format and in quotes: "HH:MM:SS" or "D-HH:MM:SS"."""
    constraint: Line | None = None
    """Required node features, as in sbatch --constraint."""
    nodelist: list[Hosts] = []
    """Nodes, such as [n1] or ["n[1-4]"]. Each allocation contains all nodes of this list."""
    exclude: list[Hosts] = []
    """Nodes to avoid, such as [n7, "n[10-12]"]."""
    reservation: Names | None = None
    """Reservation to run in."""
    licenses: Word | None = None
    """Cluster licences, such as matlab:1."""
    exclusive: bool = False
    """True: no other job may run on the nodes of the job."""
    nice: int = Field(default=0, ge=0, le=2_147_483_645)
    """Amount by which to lower the priority of the jobs."""
    extra_directives: Options = {}
    """Further long options of sbatch without dashes, such as {gres-flags: enforce-binding}. A plain flag has an empty value."""
    env: Variables = {}
    """Environment variables of the job. Do not put secrets here."""
    setup: Shell = ""
    """Shell lines that the job runs first, such as `module load cuda`."""
    scratch: Folder = "/tmp"
    """Node-local folder for sockets, unpacked images and Rollyard's Python packages."""
    unpack_python: Literal["Auto", "Always", "Never"] = "Auto"
    """Whether each node imports Rollyard from a copy that is unpacked once in `scratch`. Auto: yes if Rollyard is in a
    network folder."""

    @model_validator(mode="after")
    def _consistent(self) -> AllocationTemplate:
        if self.within is not None:
            self._check_within()
        if self.memory is not None and self.memory_per_cpu is not None:
            raise ValueError("set `memory` for each node or `memoryPerCpu` for each core, not both")
        if self.gpu_type is not None and not self.gpus_per_node:
            raise ValueError("`gpuType` needs a number of GPUs; write `gpusPerNode` too")
        if self.gpus_per_node and self.gres is not None and gpus_in(self.gres):
            raise ValueError(
                "`gpusPerNode` and `gres` both ask for GPUs; keep `gpusPerNode`, and set `gpuType` if the type matters"
            )
        wanted = {name for hosts in self.nodelist for name in expand(hosts)}
        if len(wanted) > self.nodes:
            raise ValueError(
                f"each allocation contains all {len(wanted)} nodes of `nodelist`, but `nodes` is {self.nodes}; "
                "shorten the list, or write the nodes to avoid in `exclude`"
            )
        if both := wanted & {name for hosts in self.exclude for name in expand(hosts)}:
            raise ValueError(f"{', '.join(sorted(both))}: in `nodelist` and in `exclude`; keep one of the two")
        return self

    def _check_within(self) -> None:
        given = [name for name in JOB_FIELDS if getattr(self, name) != AllocationTemplate.model_fields[name].default]
        if given:
            names = ", ".join(f"`{to_camel(name)}`" for name in given)
            raise ValueError(f"`within` uses job {self.within} as it is; leave out {names}")

    @property
    def gpus(self) -> int:
        """GPUs on each node, from the field that requests them."""
        return self.gpus_per_node or (gpus_in(self.gres) if self.gres is not None else 0)

    @property
    def memory_bytes(self) -> int:
        """Requested memory on each node; 0 if no amount is given, or if all of the node's memory is requested."""
        if self.memory_per_cpu is not None:
            return size_bytes(self.memory_per_cpu) * self.cpus_per_task
        return size_bytes(self.memory) if self.memory is not None else 0


DRAINED_BY = "rollyard.dev/drained-by"
"""Annotation of an allocation that a person drained: the name of the token's owner."""


class PoolReference(KindModel):
    kind: Literal["InferencePool", "RolloutPool"]
    name: str
    uid: str


class AllocationSpec(KindModel):
    pool: PoolReference
    index: int
    """Index of the allocation in its pool, and part of its name. A pool never uses an index twice."""
    template_hash: str
    """Hash of the parts of the pool's spec from which the allocation was made. If the hash of the present
    spec differs, the allocation is out of date."""
    template: AllocationTemplate
    drain: bool = False
    """True: the allocation accepts no new work, finishes its present work, then ends."""
    drain_timeout_seconds: int = 600
    """Longest time that draining may take. Rollouts that can move leave before; the rest is handed back, and the job ends."""
    successor_of: str | None = None
    """Name of the allocation that this allocation replaces."""
    after_job: str | None = None
    """Id of the Slurm job that must end before this job starts, if the two jobs must not run at the same time."""
    model: str | None = None
    """InferencePool only: folder of the model that the allocation was made to serve."""


class Binding(StatusModel):
    """Process that may act for the allocation: the first one that registered."""

    job_id: str
    restart_count: int = 0
    instance: str
    """Random id of the process that registered."""
    node: str
    registered_at: datetime


class AllocationStatus(StatusModel):
    observed_generation: int = 0
    intended_at: datetime | None = None
    """Time at which the submit was decided. This time is written before sbatch is called."""
    intents: int = 0
    """Number of times that a submit was decided."""
    burst: str | None = None
    """Rollyard's id of the job array of the last submit. Absent if the job was submitted alone."""
    task: int | None = None
    """Index of this job in the job array of `burst`."""
    job_id: str | None = None
    restart_count: int = 0
    job_state: str | None = None
    """Slurm's job state: PENDING, RUNNING, COMPLETED, TIMEOUT, ... Rollyard itself sets FAILED if Slurm refused the
    submit, and GONE if the job disappeared."""
    reason: str = ""
    refusal: Refusal | None = None
    """Kind of Slurm's refusal of the submit: Limit, Array or Final. Absent if Slurm did not refuse it."""
    node: str = ""
    start_time: datetime | None = None
    """Start time. While the job is pending: Slurm's estimate, if there is one."""
    end_time: datetime | None = None
    """Time at which the job ended. While the job runs: the end of its walltime."""
    ready_at: datetime | None = None
    """Time at which the allocation was ready for the first time."""
    exit_code: int | None = None
    binding: Binding | None = None
    ready: bool = False
    """True while the allocation's process is healthy: a connected node agent, or an engine that serves."""
    conditions: list[Condition] = []

    @property
    def pending_reason(self) -> PendingReason:
        """Slurm's reason why the job waits. Without meaning once the job has started."""
        return PendingReason(self.reason)

    @property
    def waiting_reason(self) -> str:
        """Reason why the job waits, as Slurm's word and a sentence. After the job's end: how the job ended."""
        return str(self.pending_reason) if self.job_state == JobState.PENDING else self.reason

    @property
    def is_ended(self) -> bool:
        """Whether the job has ended, or its submit was refused."""
        return self.job_state is not None and self.job_state not in LIVE_STATES


class Allocation(KindObject):
    """One Slurm job that Rollyard submitted."""

    PLURAL: ClassVar[str] = "allocations"
    SINGULAR: ClassVar[str] = "allocation"
    SHORT: ClassVar[tuple[str, ...]] = ("alloc",)

    kind: Literal["Allocation"] = "Allocation"
    spec: AllocationSpec
    status: AllocationStatus = AllocationStatus()

    @property
    def owner(self) -> ObjectKey:
        """Key of the pool that has made this allocation."""
        pool = self.spec.pool
        return ObjectKey(kind=pool.kind, namespace=self.metadata.namespace, name=pool.name)
