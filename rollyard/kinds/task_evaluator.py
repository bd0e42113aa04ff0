"""The sandbox of EVAL that a task asks for, where it differs from that of RUN."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.base import WireModel, evolve
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.values.quantity import Size, size_bytes


class TaskEvaluator(WireModel):
    """Sandbox of EVAL. The pool's sandboxes and its time for EVAL are the upper bounds. Default of each field: as in RUN."""

    image: str | None = Field(default=None, min_length=1)
    """Sandbox image."""
    network: bool | None = None
    """False: no host can be reached. True: those that the pool's sandboxes can reach."""
    memory: Size | None = None
    """Memory limit, such as 512M."""
    disk: Size | None = None
    """Size limit of the files that the evaluation writes."""
    cpus: float | None = Field(default=None, gt=0)
    gpus: int | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, gt=0)
    """Longest time of EVAL, in seconds."""

    def check(self, sandbox: SandboxTemplate, eval_seconds: float) -> None:
        """Raise Invalid with a cause for each field that asks for more than a pool has. `eval_seconds`: the pool's time for
        EVAL."""
        causes = [Cause(f"task.evaluator.{name}", message) for name, message in self._excesses(sandbox, eval_seconds)]
        if causes:
            listed = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
            raise Invalid(f"the evaluator needs more than the pool has: {listed}", causes=causes)

    def _excesses(self, sandbox: SandboxTemplate, eval_seconds: float) -> Iterator[tuple[str, str]]:
        for name in ("memory", "disk"):
            limit, wanted = getattr(sandbox, name), getattr(self, name)
            if wanted is not None and size_bytes(wanted) > size_bytes(limit):
                yield name, f"write at most {limit}, the pool's `sandbox.{name}`"
        for name in ("cpus", "gpus"):
            limit, wanted = getattr(sandbox, name), getattr(self, name)
            if wanted is not None and wanted > limit:
                yield name, f"write at most {limit:g}, the pool's `sandbox.{name}`"
        if self.seconds is not None and self.seconds > eval_seconds:
            yield "seconds", f"write at most {eval_seconds:g}, the pool's `stages.eval.timeoutSeconds`"
        if self.network and not (sandbox.host_network or sandbox.allowed_hosts):
            yield (
                "network",
                "the pool's sandboxes reach no host; set `sandbox.allowedHosts` of the pool, or leave it out",
            )

    def template(self, sandbox: SandboxTemplate) -> SandboxTemplate:
        """Return the pool's template for the sandbox of this evaluation."""
        own = {name: getattr(self, name) for name in ("memory", "disk", "cpus", "gpus")}
        if self.network is False:
            own |= {"host_network": False, "allowed_hosts": []}
        return evolve(sandbox, **{name: value for name, value in own.items() if value is not None})
