"""Whether a template can be fulfilled here, before anything is submitted. Pure.

Only what can never start is an error. Nodes that are down or drained count as what they have: they come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollyard.errors import Cause
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.quantity import size_bytes, walltime_seconds
from rollyard.slurm.base import Node, Partition, Site

GIB = 1 << 30


def check(template: AllocationTemplate, site: Site) -> list[Cause]:
    """What is wrong, by field, with what one can do instead. Nothing, where the site tells nothing of partitions."""
    if not site.partitions:
        return []
    unknown = [name for name in _asked(template) if name not in site.partitions]
    if unknown:
        there = ", ".join(sorted(site.partitions))
        return [_cause("partition", f"there is no partition {', '.join(unknown)}; write one of {there}")]
    partitions = [site.partitions[n] for n in _asked(template)] or [p for p in site.partitions.values() if p.default]
    if not partitions:
        return [_cause("partition", f"this site has no default; write one of {', '.join(sorted(site.partitions))}")]
    # A job may start in any of them, so it is wrong only where each refuses it.
    found = [_refusals(template, partition, site) for partition in partitions]
    return min(found, key=len) if all(found) else []


def _asked(template: AllocationTemplate) -> list[str]:
    return [name for name in (template.partition or "").split(",") if name]


def _refusals(template: AllocationTemplate, partition: Partition, site: Site) -> list[Cause]:
    return [*_limits(template, partition), *_sizes(template, partition, site)]


def _limits(template: AllocationTemplate, partition: Partition) -> list[Cause]:
    found, name = [], partition.name
    if partition.max_seconds is not None and walltime_seconds(template.time_limit) > partition.max_seconds:
        longest = _walltime(partition.max_seconds)
        found.append(_cause("timeLimit", f'partition {name} allows at most "{longest}"'))
    if partition.max_nodes is not None and template.nodes > partition.max_nodes:
        found.append(_cause("nodes", f"partition {name} allows at most {partition.max_nodes}"))
    for field, allowed in (("account", partition.accounts), ("qos", partition.qos)):
        asked = getattr(template, field)
        if asked is not None and allowed is not None and asked not in allowed:
            found.append(_cause(field, f"partition {name} takes {', '.join(sorted(allowed))}, not {asked}"))
    return found


def _sizes(template: AllocationTemplate, partition: Partition, site: Site) -> list[Cause]:
    """Whether enough of its nodes are large enough, each thing by itself."""
    nodes = [site.nodes[name] for name in partition.nodes if name in site.nodes and name not in template.exclude]
    if not nodes:
        return []  # nothing is known of them
    memory = size_bytes(template.memory) if template.memory is not None else 0
    wanted: list[tuple[str, str, int, list[int], Callable[[int], str]]] = [
        ("cpusPerTask", "CPUs", template.cpus_per_task, [n.cpus for n in nodes], str),
        ("memory", "of memory", memory, [n.memory_bytes for n in nodes], lambda size: f"{size / GIB:.1f}G"),
        ("gpusPerNode", "GPUs", template.gpus_per_node, [n.gpus for n in nodes], str),
    ]
    found = [
        _cause(field, f"the largest node of partition {partition.name} has {show(max(sizes))} {what}")
        for field, what, asked, sizes, show in wanted
        if asked > max(sizes)
    ]
    if not found and _large(template, memory, nodes) < template.nodes:
        found.append(_cause("nodes", f"partition {partition.name} has {len(nodes)} nodes, and too few of this size"))
    return found


def _large(template: AllocationTemplate, memory: int, nodes: Sequence[Node]) -> int:
    return sum(
        n.cpus >= template.cpus_per_task and n.memory_bytes >= memory and n.gpus >= template.gpus_per_node
        for n in nodes
    )


def _walltime(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def _cause(field: str, message: str) -> Cause:
    return Cause(f"spec.allocation.{field}", message)
