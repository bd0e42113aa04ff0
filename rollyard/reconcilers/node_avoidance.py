"""Nodes on which a pool's allocations fail, and that its next allocations avoid for some time. Pure.

A node may end each job in a second: a module is missing, /tmp is full, a GPU is dead. Such a node is always idle, so Slurm
gives it every retry. A node is avoided after FAILURES failures in a row on it, before an allocation was ready there.

Whether the node or the template is at fault is not always known. Therefore the number of avoided nodes is limited, an
avoided node is used again after AVOID_SECONDS, and no node is avoided without which the jobs could not start now. If
more nodes fail, the template is the likely cause, and none is avoided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.kinds.allocation import Allocation, AllocationTemplate
from rollyard.kinds.base import evolve
from rollyard.reconcilers.failure_backoff import FAILURES
from rollyard.slurm.base import Site
from rollyard.slurm.site_check import check, find_doubts

FAILURES_IN_A_ROW = 2
AVOID_SECONDS = 600.0
"""Seconds after the last failure on a node until the node is used again."""
MOST_UNPROVEN = 3
"""Greatest number of avoided nodes while no allocation of the template has been ready on any node."""
MOST_PROVEN = 8
"""Greatest number of avoided nodes if one has."""


@dataclass(frozen=True, slots=True)
class BadNode:
    name: str
    failed: tuple[Allocation, ...]
    """Allocations that failed there in a row, the last one at the end."""
    until: float
    """Unix seconds until which the node is avoided."""


def bad_nodes(
    template: AllocationTemplate, hash: str, allocations: Sequence[Allocation], site: Site | None, now: float
) -> tuple[BadNode, ...]:
    """Return the nodes that new allocations avoid, by name. `hash`: the template's hash; only its allocations count."""
    if template.nodelist or template.nodes > 1 or template.within is not None:
        return ()
    own = [a for a in allocations if a.spec.template_hash == hash]
    found = tuple(node for name in sorted({a.status.node for a in own}) if (node := _bad_node(name, own, now)))
    proven = any(a.status.ready_at is not None for a in own)
    if len(found) > (MOST_PROVEN if proven else MOST_UNPROVEN):
        return ()
    if site is None:  # not read yet after a restart: nothing changes
        decided = {name for a in own if not a.status.is_ended for name in a.spec.template.exclude}
        return tuple(node for node in found if node.name in decided)
    rest = avoiding(template, found)
    return found if site.partitions and _obstacles(rest, site) <= _obstacles(template, site) else ()


def avoiding(template: AllocationTemplate, nodes: Sequence[BadNode]) -> AllocationTemplate:
    """Return the template of an allocation that avoids these nodes."""
    return evolve(template, exclude=[*template.exclude, *(node.name for node in nodes)]) if nodes else template


def avoids_needlessly(allocation: Allocation, template: AllocationTemplate, nodes: Sequence[BadNode]) -> bool:
    """Whether an allocation avoids a node that neither the pool's template nor anything else says to avoid."""
    return not set(allocation.spec.template.exclude) <= {*template.exclude, *(node.name for node in nodes)}


def _obstacles(template: AllocationTemplate, site: Site) -> set[str]:
    """Reasons why jobs of the template cannot start, or not now."""
    return {*(cause.message for cause in check(template, site)), *find_doubts(template, site)}


def _bad_node(name: str, own: Sequence[Allocation], now: float) -> BadNode | None:
    there = [a for a in own if a.status.node == name]
    ready = max((a.status.ready_at.timestamp() for a in there if a.status.ready_at is not None), default=0.0)
    failed = sorted(
        (min(end.timestamp(), now), a.spec.index, a)
        for a in there
        if (end := a.status.end_time) is not None
        and a.status.job_state in FAILURES
        and a.status.ready_at is None
        and not (a.spec.drain or a.metadata.deletion_timestamp is not None)
        and end.timestamp() > ready
    )
    if not name or len(failed) < FAILURES_IN_A_ROW or now - failed[-1][0] >= AVOID_SECONDS:
        return None
    return BadNode(name, tuple(a for _, _, a in failed), failed[-1][0] + AVOID_SECONDS)
