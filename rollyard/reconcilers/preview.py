"""Preview of a pool before the pool is written: the check against the site's Slurm, and the jobs that would be
submitted.

A preview changes nothing. It asks Slurm for its partitions if what is known of them is older than some seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.core.clock import Clock, as_text
from rollyard.core.errors import Cause
from rollyard.kinds.allocation import Allocation, AllocationTemplate
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import GPU_HOURS_SPENT
from rollyard.kinds.preview import Submission
from rollyard.kinds.registry import Pool
from rollyard.reconcilers.allocation_folder import AllocationFolders
from rollyard.reconcilers.autoscaler import Metric
from rollyard.reconcilers.job_listings import ListingFeed
from rollyard.reconcilers.plan import Member, plan_pool, pool_ends
from rollyard.reconcilers.pool import new_allocation
from rollyard.reconcilers.pool_size import account_gpu_hours, decide_size
from rollyard.slurm.site_check import check, find_doubts

SAMPLE_UID = "UID"
"""Placeholder for the allocation's uid in a shown script."""
UNKNOWN_DEMAND = Metric("demand", None, 1.0)
"""Metric of an unknown demand. With it, the autoscaler keeps a pool's present size, within the pool's bounds."""


class Preview:
    """Previews pools. The site is known from the last description that `ListingFeed` has read from Slurm."""

    def __init__(self, workspace: AllocationFolders, feed: ListingFeed, clock: Clock) -> None:
        self._workspace = workspace
        self._feed = feed
        self._clock = clock

    async def check(self, pool: Pool) -> tuple[Sequence[Cause], Sequence[str]]:
        """Return (mistakes, warnings). A mistake is a request that this site can never fulfil."""
        if _external(pool):
            return (), ()
        site, template = await self._feed.fresh_site(), pool.spec.allocation
        if site is None:
            why = f": {self._feed.unreachable_why}" if self._feed.unreachable_why else ""
            return (), [f"spec.allocation was not checked: Slurm's partitions have not been read yet{why}"]
        causes, since = check(template, site), self._feed.unreachable_since
        if since is None:
            return causes, () if causes else find_doubts(template, site)
        # Slurm's last answer may be old, and the field may be valid now.
        known = [f"according to the last answer, {c.field}: {c.message}" for c in causes]
        words = f"Slurm has not answered since {as_text(since)}"
        return (), [f"spec.allocation was not checked: {words}", *known]

    def submission(self, pool: Pool, allocations: Sequence[Allocation]) -> Submission:
        """Jobs that would be submitted beside the pool's present allocations. Raises Invalid."""
        if _external(pool):
            return Submission(script="", jobs=0, summary="others start its servers, so nothing is submitted")
        first = new_allocation(pool, pool.status.next_index)
        named = evolve(first, metadata=evolve(first.metadata, uid=SAMPLE_UID))
        jobs, summary = summarise(pool, allocations, self._shape(pool.spec.allocation), self._clock.time())
        return Submission(script=self._workspace.script(named).text, jobs=jobs, summary=summary)

    def _shape(self, template: AllocationTemplate) -> str:
        """Text such as `of 1 node, 8 CPUs, 0 GPUs for up to 08:00:00 in partition main`."""
        type = f" {template.gpu_type}" if template.gpu_type else ""
        each = [f"{template.cpus_per_task} CPUs", f"{template.gpus}{type} GPUs"]
        if template.memory is not None:
            each.append(f"{template.memory} of memory" if template.memory_bytes else "all memory")
        if template.memory_per_cpu is not None:
            each.append(f"{template.memory_per_cpu} of memory for each CPU")
        nodes = "1 node" if template.nodes == 1 else f"{template.nodes} nodes, on each"
        return f"of {nodes}, {', '.join(each)} for up to {template.time_limit} in {self._where(template)}"

    def _where(self, template: AllocationTemplate) -> str:
        if template.within is not None:
            return f"job {template.within}, as a step"
        if template.partition is not None:
            return f"partition {' or '.join(template.partition.split(','))}"
        site = self._feed.site
        default = next((p.name for p in site.partitions.values() if p.default), None) if site is not None else None
        return f"partition {default}, the default" if default is not None else "the default partition"


def _external(pool: Pool) -> bool:
    return isinstance(pool, InferencePool) and pool.spec.engine.external is not None


def summarise(pool: Pool, allocations: Sequence[Allocation], shape: str, now: float) -> tuple[int, str]:
    """Number of jobs that the reconciler would submit, and one line about its plan. `shape`: resources of each job.

    The demand is assumed to be unchanged, and Slurm's queue to be known.
    """
    ledger = account_gpu_hours(pool.status.gpu_ledger, allocations, now)
    scale = decide_size(pool, None, [UNKNOWN_DEMAND], ledger, now)
    members = [Member(a, a.status.ready) for a in allocations]
    at = max(now, pool_ends(pool, members, now).next_at)
    plan = plan_pool(pool, members, scale.desired, at, slurm_known=True)
    new, old, surge, parts = len(plan.create), len(plan.outdated), pool.spec.renewal.max_surge, []
    if new:
        array = ", as one job array" if new > 1 else ""
        delay = f", not before {as_text(at)}" if at > now else ""
        parts.append(f"submit {_count_text(new, 'job')} {shape}{array}{delay}")
    if old:
        one_by_one = f", at most {surge} at once" if old > surge else ""
        parts.append(f"replace {_count_text(old, 'job')} by as many {shape}{one_by_one}")
    if plan.surplus:
        parts.append(f"give back {_count_text(len(plan.surplus), 'allocation')}")
    spent = scale.limit if scale.limit is not None and scale.limit.word == GPU_HOURS_SPENT else None
    bounds = pool.spec.autoscaling
    if not parts:
        parts.append("submit nothing now")
        if bounds is not None and not pool.spec.suspend and spent is None:
            parts.append(f"up to {_count_text(bounds.max_replicas, 'job')} {shape} as the demand grows")
    if spent is not None:
        parts.append(spent.message)
    return new + old, f"would {'; '.join(parts)}"


def _count_text(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
