"""`Allocation`: one Slurm job of ours, and the template that pools make it from."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from rollyard.kinds.base import Condition, Kinded, KindObject, Observed
from rollyard.kinds.directives import (
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
from rollyard.kinds.hostlist import expand
from rollyard.kinds.quantity import Walltime, size_bytes
from rollyard.kinds.reasons import explained

LIVE_STATES = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING"}
LOG_OFFSET = "Rollyard-Log-Offset"
"""Header of an allocation's output: at which byte of all of it the answer begins; who was cut off asks for what follows."""
OF_JOBS = (
    "partition", "account", "qos", "nodes", "memory_per_cpu", "constraint", "nodelist", "exclude", "reservation", "licenses",
    "exclusive", "nice", "extra_directives",
)  # fmt: skip
"""Fields that say what job to submit; a step has to take what there is."""


class AllocationTemplate(Kinded):
    """What to ask of Slurm for one allocation; the same in both pools."""

    within: str | None = Field(default=None, pattern=r"^[1-9][0-9]*$")
    """Id of a job that you hold already, to run in as steps of it rather than to submit jobs; nothing outlives it."""
    partition: Names | None = None
    """Partition, or several separated by commas; the site's default when left out."""
    account: Name | None = None
    """Account to charge."""
    qos: Name | None = None
    """Quality of service."""
    nodes: int = Field(default=1, ge=1)
    """Nodes of one allocation; more than one only for a model server that spans them."""
    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs on each node."""
    gpu_type: Name | None = None
    """Type of these GPUs as the site calls it, such as a100; any when left out."""
    gres: Gres | None = None
    """Other generic resources on each node, as for sbatch --gres: shard:2, or gpu:4 where a site wants GPUs asked for so."""
    cpus_per_task: int = Field(default=1, ge=1)
    """CPU cores on each node."""
    memory: Memory | None = None
    """Memory of each node, such as 128G; 0 for all of it; the partition's default when left out."""
    memory_per_cpu: Memory | None = None
    """Memory for each CPU core, such as 4G, instead of `memory`."""
    time_limit: Walltime = "08:00:00"
    """Walltime as Slurm writes it, in quotes: "HH:MM:SS" or "D-HH:MM:SS"."""
    constraint: Line | None = None
    """Node features, as for sbatch --constraint."""
    nodelist: list[Hosts] = []
    """Nodes that each allocation must contain, all of them, such as [n1] or ["n[1-4]"]."""
    exclude: list[Hosts] = []
    """Nodes to avoid, such as [n7, "n[10-12]"]."""
    reservation: Names | None = None
    """Reservation to run in."""
    licenses: Word | None = None
    """Licences of the cluster, such as matlab:1."""
    exclusive: bool = False
    """Whether its nodes are shared with no other job."""
    nice: int = Field(default=0, ge=0, le=2_147_483_645)
    """By how much to lower the jobs' priority."""
    extra_directives: Options = {}
    """Further sbatch long options without dashes, such as {gres-flags: enforce-binding}; an empty value for a plain flag."""
    env: Variables = {}
    """Environment variables of the job; no place for secrets."""
    setup: Shell = ""
    """Shell lines run before ours, such as `module load cuda`."""
    scratch: Folder = "/tmp"
    """Node-local folder for sockets, unpacked images and our own Python."""
    stage_python: Literal["Auto", "Always", "Never"] = "Auto"
    """Unpack our Python packages into `scratch` once a node and import them there; Auto: where they lie on a network folder."""

    @model_validator(mode="after")
    def _consistent(self) -> AllocationTemplate:
        if self.within is not None:
            self._check_within()
        if self.memory is not None and self.memory_per_cpu is not None:
            raise ValueError("set `memory` for each node or `memoryPerCpu` for each core, not both")
        if self.gpu_type is not None and not self.gpus_per_node:
            raise ValueError("`gpuType` says which GPUs; write `gpusPerNode` too, how many")
        if self.gpus_per_node and self.gres is not None and gpus_in(self.gres):
            raise ValueError(
                "`gpusPerNode` and `gres` both ask for GPUs; keep `gpusPerNode`, with `gpuType` where it matters"
            )
        wanted = {name for hosts in self.nodelist for name in expand(hosts)}
        if len(wanted) > self.nodes:
            raise ValueError(
                f"each allocation contains all nodes of `nodelist`, {len(wanted)}, and `nodes` is {self.nodes}; "
                "shorten the list, or name the nodes that are not wanted in `exclude`"
            )
        if both := wanted & {name for hosts in self.exclude for name in expand(hosts)}:
            raise ValueError(f"{', '.join(sorted(both))}: in `nodelist` and in `exclude`; keep one of the two")
        return self

    def _check_within(self) -> None:
        given = [name for name in OF_JOBS if getattr(self, name) != AllocationTemplate.model_fields[name].default]
        if given:
            names = ", ".join(f"`{to_camel(name)}`" for name in given)
            raise ValueError(f"`within` takes job {self.within} as it is; leave out {names}")

    @property
    def gpus(self) -> int:
        """On each node, however they are asked for."""
        return self.gpus_per_node or (gpus_in(self.gres) if self.gres is not None else 0)

    @property
    def memory_bytes(self) -> int:
        """On each node, as far as it is asked for; 0 for whatever there is."""
        if self.memory_per_cpu is not None:
            return size_bytes(self.memory_per_cpu) * self.cpus_per_task
        return size_bytes(self.memory) if self.memory is not None else 0


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
    model: str | None = None
    """Folder of the model that it was made to serve, for an InferencePool."""


class Binding(Observed):
    """The one job identity that may speak for the allocation: the first that registered."""

    job_id: str
    restart_count: int = 0
    instance: str
    """Random id of the process that registered."""
    node: str
    registered_at: datetime


class AllocationStatus(Observed):
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
    def why(self) -> str:
        """Why its job waits, in Slurm's word and in ours; else how it ended."""
        return explained(self.reason) if self.job_state == "PENDING" else self.reason

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
