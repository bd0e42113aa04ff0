"""Things that a kind of task needs of the sandbox of one stage. The pool is the upper bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.base import evolve
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.values.host_pattern import HostPattern
from rollyard.kinds.values.quantity import size_bytes


@dataclass(frozen=True)
class StageNeeds:
    hosts: tuple[str, ...] | None = None
    """Hosts that the sandbox reaches; empty: none. None: those of the pool."""
    network: bool = False
    """True: the pool must have a network."""
    memory_mib: int | None = None
    """Memory limit."""
    cpus: float | None = None
    """CPUs that the sandbox must have."""
    seconds: float | None = None
    """Longest time of the stage. Default: the pool's."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None

    def check(self, sandbox: SandboxTemplate) -> None:
        """Raise Invalid with a cause for each need that the pool does not meet."""
        causes = [Cause("task", message) for message in self._lacks(sandbox)]
        if causes:
            raise Invalid(
                f"the task needs more than the pool has: {'; '.join(cause.message for cause in causes)}", causes=causes
            )

    def _lacks(self, sandbox: SandboxTemplate) -> Iterator[str]:
        if self.memory_mib is not None and self.memory_mib << 20 > size_bytes(sandbox.memory):
            yield f"it needs {self.memory_mib} MiB of memory; set `sandbox.memory` of the pool to {self.memory_mib}M"
        if self.cpus is not None and self.cpus > math.ceil(sandbox.cpus):
            yield f"it needs {self.cpus:g} CPUs; set `sandbox.cpus` of the pool to more than {math.ceil(self.cpus) - 1}"
        if self.network and not (sandbox.host_network or sandbox.allowed_hosts):
            yield "it needs a network; set `sandbox.allowedHosts` or `sandbox.hostNetwork` of the pool"
        given = [HostPattern.parse(text) for text in sandbox.allowed_hosts]
        for host in self.hosts or ():
            wanted = HostPattern.parse(host)
            if not sandbox.host_network and not any(_covers(one, wanted) for one in given):
                yield f"it needs the host {host}; add it to `sandbox.allowedHosts` of the pool"

    def template(self, sandbox: SandboxTemplate) -> SandboxTemplate:
        """Return the pool's template for the sandbox of this stage."""
        if self.memory_mib is not None:
            sandbox = evolve(sandbox, memory=f"{self.memory_mib}M")
        if self.hosts is not None:
            sandbox = evolve(sandbox, host_network=False, allowed_hosts=list(self.hosts))
        return sandbox


def _covers(given: HostPattern, wanted: HostPattern) -> bool:
    """Whether everything that `wanted` means is allowed by `given`."""
    inside = given.wildcard and wanted.host.removeprefix("*").endswith(given.host[1:])
    return (inside or given.host == wanted.host) and set(wanted.ports) <= set(given.ports)
