"""Preview of a pool on this site, before it is written: checked and shown. It changes nothing and sends no query to Slurm."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.core.clock import as_datetime
from rollyard.core.errors import Cause
from rollyard.kinds.allocation import Allocation, AllocationTemplate
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.preview import Submission
from rollyard.kinds.registry import Pool
from rollyard.reconcilers.allocation_folder import AllocationFolders
from rollyard.reconcilers.plan import template_hash
from rollyard.reconcilers.pool import new_allocation
from rollyard.reconcilers.slurm_snapshots import SnapshotFeed
from rollyard.slurm.site_check import check, find_doubts

SAMPLE_NAMESPACE = "UID"
"""Placeholder for the allocation's own namespace in a shown script."""


class Preview:
    """Preview by the feed's last copy of the site."""

    def __init__(self, workspace: AllocationFolders, feed: SnapshotFeed) -> None:
        self._workspace = workspace
        self._feed = feed

    def check(self, pool: Pool) -> tuple[Sequence[Cause], Sequence[str]]:
        """(errors that this site can never fulfil, warnings)."""
        if _external(pool):
            return (), ()
        site, template = self._feed.site, pool.spec.allocation
        if site is None:
            why = f": {self._feed.unreachable_why}" if self._feed.unreachable_why else ""
            return (), [f"spec.allocation was not checked: Slurm's partitions have not been read yet{why}"]
        causes, since = check(template, site), self._feed.unreachable_since
        if since is None:
            return causes, () if causes else find_doubts(template, site)
        # An error by the last answer may be right by now: unknown is not no.
        known = [f"according to the last answer, {c.field}: {c.message}" for c in causes]
        words = f"Slurm has not answered since {as_datetime(since):%Y-%m-%d %H:%M:%S} UTC"
        return (), [f"spec.allocation was not checked: {words}", *known]

    def submission(self, pool: Pool, allocations: Sequence[Allocation]) -> Submission:
        """Jobs that would be submitted beside the pool's present allocations. Raises Invalid."""
        if _external(pool):
            return Submission(script="", jobs=0, summary="others start its servers, so nothing is submitted")
        first = new_allocation(pool, pool.status.next_index)
        named = evolve(first, metadata=evolve(first.metadata, uid=SAMPLE_NAMESPACE))
        new, old, surplus = _changes(pool, allocations)
        words = _summary(pool, new, old, surplus, self._shape(pool.spec.allocation))
        return Submission(script=self._workspace.script(named).text, jobs=new + old, summary=words)

    def _shape(self, template: AllocationTemplate) -> str:
        """`of 1 node, 8 CPUs, 0 GPUs for up to 08:00:00 in partition main`."""
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


def _desired_size(pool: Pool) -> int:
    if pool.spec.suspend:
        return 0
    bounds = pool.spec.autoscaling
    if bounds is None:
        return pool.spec.replicas or 0
    return min(max(pool.status.replicas.desired, bounds.min_replicas), bounds.max_replicas)


def _changes(pool: Pool, allocations: Sequence[Allocation]) -> tuple[int, int, int]:
    """(number of new allocations, of replacements for outdated ones, of removed ones)"""
    active = [
        a for a in allocations if not (a.status.is_ended or a.spec.drain or a.metadata.deletion_timestamp is not None)
    ]
    replaced = {a.spec.successor_of for a in active}
    counted = [a for a in active if a.metadata.name not in replaced]
    desired = _desired_size(pool)
    old = sum(a.spec.template_hash != template_hash(pool) for a in counted)
    surplus = max(0, len(counted) - desired)
    return max(0, desired - len(counted)), max(0, old - surplus), surplus


def _summary(pool: Pool, new: int, old: int, surplus: int, shape: str) -> str:
    parts = []
    if new:
        parts.append(f"submit {_count_text(new, 'job')} {shape}{', as one job array' if new > 1 else ''}")
    if old:
        one_by_one = f", at most {pool.spec.renewal.max_surge} at once" if old > pool.spec.renewal.max_surge else ""
        parts.append(f"replace {_count_text(old, 'job')} by as many {shape}{one_by_one}")
    if surplus:
        parts.append(f"give back {_count_text(surplus, 'allocation')}")
    if parts:
        return f"would {'; '.join(parts)}"
    bounds = pool.spec.autoscaling
    later = (
        f"; up to {_count_text(bounds.max_replicas, 'job')} {shape} as the demand grows" if bounds is not None else ""
    )
    return f"would submit nothing now{'' if pool.spec.suspend else later}"


def _count_text(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
