"""`Allocation`: one Slurm job of ours, and the template that pools make it from."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rollyard.kinds.base import Condition, Kinded, KindObject
from rollyard.kinds.quantity import Size, Walltime

LIVE_STATES = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING"}
RESERVED_DIRECTIVES = {
    "job-name",
    "comment",
    "output",
    "error",
    "open-mode",
    "dependency",
    "no-requeue",
    "requeue",
    "chdir",
    "parsable",
    "array",
    "test-only",
    "wrap",
    "wait",
    "input",
}


class AllocationTemplate(Kinded):
    """What to ask of Slurm for one allocation; the same in both pools."""

    partition: str | None = None
    """Partition, or several separated by commas; the site's default when left out."""
    account: str | None = None
    """Account to charge."""
    qos: str | None = None
    """Quality of service."""
    nodes: int = Field(default=1, ge=1)
    """Nodes of one allocation."""
    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs on each node."""
    cpus_per_task: int = Field(default=1, ge=1)
    """CPU cores on each node."""
    memory: Size | None = None
    """Memory of each node, such as 128G; the partition's default when left out."""
    time_limit: Walltime = "08:00:00"
    """Walltime as Slurm writes it, in quotes: "HH:MM:SS" or "D-HH:MM:SS"."""
    constraint: str | None = None
    """Node features, as for sbatch --constraint."""
    exclude: list[str] = []
    """Nodes to avoid."""
    reservation: str | None = None
    """Reservation to run in."""
    extra_directives: dict[str, str] = {}
    """Further sbatch long options without dashes, such as {licenses: "matlab:1"}."""
    env: dict[str, str] = {}
    """Environment variables of the job; no place for secrets."""
    setup: str = ""
    """Shell lines run before ours, such as `module load cuda`."""
    scratch: str = "/tmp"
    """Node-local folder for sockets, unpacked images and our own Python."""

    @field_validator("extra_directives")
    @classmethod
    def _ours(cls, value: dict[str, str]) -> dict[str, str]:
        if taken := sorted(RESERVED_DIRECTIVES & value.keys()):
            raise ValueError(f"{', '.join(taken)}: set by rollyard itself; leave out")
        return value

    @field_validator("env")
    @classmethod
    def _names(cls, value: dict[str, str]) -> dict[str, str]:
        if bad := [k for k in value if not k.isidentifier()]:
            raise ValueError(f"{', '.join(bad)}: write names of letters, digits and '_'")
        return value


class PoolReference(Kinded):
    kind: Literal["InferencePool", "RolloutPool"]
    name: str
    uid: str


class AllocationSpec(Kinded):
    pool: PoolReference
    index: int
    """Position in the pool; part of the name, never used again within one pool."""
    template_hash: str
    """Hash of what the allocation was made from; another hash means out of date."""
    template: AllocationTemplate
    drain: bool = False
    """Take nothing new, finish what is in hand, then end."""
    drain_timeout_seconds: int = 600
    """What is still in hand after so long is handed back, and the job ended."""
    successor_of: str | None = None
    """Allocation that this one replaces: it drains when this one is ready."""
    after_job: str | None = None
    """Slurm job that must have ended before this one may start, where both at once are not wanted."""


class Binding(Kinded):
    """The one job identity that may speak for the allocation: the first that registered."""

    job_id: str
    restart_count: int = 0
    instance: str
    """Random id of the process that registered."""
    node: str
    registered_at: datetime


class AllocationStatus(Kinded):
    observed_generation: int = 0
    intended_at: datetime | None = None
    """When the submit was decided; set before sbatch is called."""
    intents: int = 0
    """How often a submit was decided."""
    burst: str | None = None
    """Id of the job array that it was last submitted with; left out when it went alone."""
    task: int | None = None
    """Its index in that array."""
    job_id: str | None = None
    restart_count: int = 0
    job_state: str | None = None
    """Slurm's word: PENDING, RUNNING, COMPLETED, TIMEOUT, ..."""
    reason: str = ""
    node: str = ""
    start_time: datetime | None = None
    """While the job is pending: Slurm's estimate, where it gives one."""
    end_time: datetime | None = None
    """When it ended or, while it runs, when its walltime ends."""
    ready_at: datetime | None = None
    """When it was ready for the first time."""
    exit_code: int | None = None
    binding: Binding | None = None
    ready: bool = False
    """Healthy by its own account: a node agent that dialled in, an engine that serves."""
    conditions: list[Condition] = []

    @property
    def ended(self) -> bool:
        """Its job is over as far as Slurm, or a submit that was refused, can tell."""
        return self.job_state is not None and self.job_state not in LIVE_STATES


class Allocation(KindObject):
    """One Slurm job of ours."""

    PLURAL: ClassVar[str] = "allocations"
    SINGULAR: ClassVar[str] = "allocation"
    SHORT: ClassVar[tuple[str, ...]] = ("alloc",)

    kind: Literal["Allocation"] = "Allocation"
    spec: AllocationSpec
    status: AllocationStatus = AllocationStatus()
