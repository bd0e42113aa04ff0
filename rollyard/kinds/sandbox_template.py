"""The sandboxes of a RolloutPool: runtime, image, resources, and how many of them fit into an allocation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.base import KindModel
from rollyard.kinds.values.host_pattern import HostPattern
from rollyard.kinds.values.image_reference import ImageName
from rollyard.kinds.values.paths import AbsolutePath
from rollyard.kinds.values.quantity import Size, size_bytes
from rollyard.kinds.values.runtime_name import RuntimeName


def _check_host(text: str) -> str:
    HostPattern.parse(text)
    return text


class SandboxImages(KindModel):
    cache_size: Size = "40G"
    """Greatest size of a node's cache of images. The images that no sandbox uses are deleted first, the least recently
    used one before the others."""
    shared_folder: AbsolutePath | None = None
    """Folder that all nodes see. One node pulls an image from its registry into this folder; the other nodes read the
    image from there."""
    credentials_file: AbsolutePath | None = None
    """File with the credentials of private registries, in the format of docker's config.json. Only its owner may be able to
    read it (mode 0600)."""
    insecure_registries: list[str] = []
    """Registries, as HOST or HOST:PORT, that are asked by plain HTTP. localhost always is."""
    give_up_after_seconds: int = Field(default=3600, ge=0)
    """Seconds for which rollouts wait for an image that cannot be had. Then they end InfraFailed."""


class WarmSpec(KindModel):
    max: int = Field(default=8, ge=0, le=4096)
    """Greatest number of sandboxes that a node agent starts before rollouts need them. They use only places of the
    allocation that no rollout uses. 0: every sandbox starts when a rollout needs it."""


class SandboxTemplate(KindModel):
    runtime: RuntimeName = "auto"
    """Container runtime. auto: the first runtime of Apptainer, Singularity and bubblewrap that works on the node."""
    default_image: ImageName | None = None
    """Image for tasks that name none: docker://HOST/REPOSITORY:TAG, built:NAME, an archive, a .sif file, a folder, or any
    other name of an image. Default: the node's own /usr, read-only."""
    images: SandboxImages = SandboxImages()
    """The node's cache of images, and what is needed to fill it."""
    network: Literal["none"] = "none"
    """Network of sandboxes: a loopback of their own. `allowedHosts` and `hostNetwork` give more."""
    allowed_hosts: list[Annotated[str, AfterValidator(_check_host)]] = Field(default=[], max_length=256)
    """Hosts that sandboxes can reach over HTTP and HTTPS, through a proxy of the node agent: pypi.org,
    "*.pythonhosted.org", mirror:8080. Without a port: 80 and 443. Programs find the proxy by HTTP_PROXY and HTTPS_PROXY."""
    host_network: bool = False
    """True: sandboxes have the network of the node, with all its servers. A hostile task can then attack them."""
    cpus: float = Field(default=0.25, gt=0)
    """CPU cores to count for one sandbox. A fraction is right if sandboxes mostly wait for the model."""
    memory: Size = "2G"
    """Memory limit of the sandbox: of all its processes, and of the files that it writes, which are in memory. If the
    allocation sets memory, this amount of the allocation's memory is counted for each sandbox; else this amount of the
    memory that the job has on its node, as far as the least widths of the stages allow."""
    disk: Size = "1G"
    """Size limit of each file that a sandbox writes, and of all of them together."""

    gpus: int = Field(default=0, ge=0, le=64)
    """GPUs of one sandbox, of those that the allocation has. A GPU is in one sandbox at a time."""

    warm: WarmSpec = WarmSpec()
    """Sandboxes that are started in advance."""

    @model_validator(mode="after")
    def _one_network(self) -> SandboxTemplate:
        if self.allowed_hosts and self.host_network:
            raise ValueError("`hostNetwork` reaches every host already; leave out `allowedHosts` or `hostNetwork`")
        return self


def sandbox_capacity(sandbox: SandboxTemplate, allocation: AllocationTemplate) -> int:
    """Number of sandboxes that fit into an allocation's cores, into its memory if it sets memory, and into its GPUs if
    sandboxes have GPUs."""
    by_cores, by_memory = sandbox_capacities(sandbox, allocation)
    by_gpus = allocation.gpus // sandbox.gpus if sandbox.gpus else None
    return min(room for room in (by_cores, by_memory, by_gpus) if room is not None)


def sandbox_capacities(sandbox: SandboxTemplate, allocation: AllocationTemplate) -> tuple[int, int | None]:
    """Return how many sandboxes fit into the cores, and how many into the memory; None if the allocation sets no memory."""
    by_cores = int(allocation.cpus_per_task / sandbox.cpus + 1e-9)  # 7 / 0.14 is slightly less than 50
    if not allocation.memory_bytes:
        return by_cores, None
    return by_cores, allocation.memory_bytes // max(1, size_bytes(sandbox.memory))
