"""Checks whether a site can run a template's jobs, before any job is submitted. Pure.

It is an error if the jobs can never start. Nodes and partitions that are down count like others, because they will come
back. It is only a warning if all suitable nodes or partitions are down, so that jobs must wait. It is also only a
warning if a job exceeds the time or node limit of each of its partitions that are up, because a QOS may lift these
limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from rollyard.core.errors import Cause
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.values.hostlist import expand
from rollyard.kinds.values.quantity import walltime_seconds, walltime_text
from rollyard.slurm.base import Node, Partition, Site

GIB = 1 << 30
MOST_NAMES = 12
"""Greatest number of names in one list of a message."""


def check(template: AllocationTemplate, site: Site) -> list[Cause]:
    """Return the errors, each with its field. Nothing is checked if the jobs are steps of a user's job (`within`), or
    if the site reports no partitions."""
    if not site.partitions or template.within is not None:
        return []
    unknown = [name for name in _requested_partitions(template) if name not in site.partitions]
    if unknown:
        return [
            _cause(
                "partition", f"there is no partition {', '.join(unknown)}; write one of {_some_names(site.partitions)}"
            )
        ]
    partitions = _partitions(template, site)
    if not partitions:
        return [_cause("partition", f"this site has no default partition; write one of {_some_names(site.partitions)}")]
    if wrong := [*_unknown_nodes(template, site), *_unknown_features(template, site)]:
        return wrong
    # A job may start in any of these partitions. So there is an error only if every partition refuses the job.
    found = [[*_limits(template, partition), *_sizes(template, partition, site)] for partition in partitions]
    return min(found, key=len) if all(found) else []


def find_doubts(template: AllocationTemplate, site: Site) -> list[str]:
    """Return warnings for a template without errors: why jobs may be refused or must wait at present, and what a site
    without Slurm ignores."""
    if not site.partitions and template.within is None:
        return list(_ignored(template, site))
    partitions = _partitions(template, site) if template.within is None else []
    up = [p for p in partitions if p.up]
    if partitions and not up:
        names = ", ".join(p.name for p in partitions)
        return [f"partition {names} is not up: until it is, jobs wait or are refused"]
    bounds = [list(_bounds(template, p)) for p in up]
    if bounds and all(bounds):
        return min(bounds, key=len)
    nodes = {n.name: n for p in up for n in _nodes(template, p, site) if _fits(template, n)}
    if nodes and not any(n.usable for n in nodes.values()):
        named = _some_names(f"{n.name} is {n.state}{f' ({n.reason})' if n.reason else ''}" for n in nodes.values())
        return [f"no suitable node is usable now: {named}; jobs wait until one comes back"]
    return []


def _ignored(template: AllocationTemplate, site: Site) -> Iterator[str]:
    """Yield what the one machine of the local driver does not have. The driver starts such jobs all the same."""
    fields = [
        f for f in ("partition", "account", "qos", "constraint", "reservation") if getattr(template, f) is not None
    ]
    if fields:
        yield f"without Slurm, {', '.join(f'spec.allocation.{f}' for f in fields)} has no effect"
    for node in site.nodes.values():
        for field, what, requested, (there,), show in _requested_sizes(template, [node]):
            if requested > there:
                has = f"this machine has {show(there)} {what}"
                yield f"spec.allocation.{field}: {has}, not {show(requested)}; without Slurm the job starts all the same"


def _requested_partitions(template: AllocationTemplate) -> list[str]:
    return template.partition.split(",") if template.partition else []


def _partitions(template: AllocationTemplate, site: Site) -> list[Partition]:
    """Return the requested partitions that exist. If the template names none, return the default partition."""
    requested = _requested_partitions(template)
    if requested:
        return [site.partitions[name] for name in requested if name in site.partitions]
    return [p for p in site.partitions.values() if p.default]


def _unknown_nodes(template: AllocationTemplate, site: Site) -> Iterator[Cause]:
    if not site.nodes:
        return
    for field, hosts in (("nodelist", template.nodelist), ("exclude", template.exclude)):
        names = [name for text in hosts for name in expand(text) if name not in site.nodes]
        if names:
            yield _cause(field, f"there is no node {_some_names(names)}; the site has {_some_names(site.nodes)}")


def _unknown_features(template: AllocationTemplate, site: Site) -> Iterator[Cause]:
    """Yield an error for features that no node has. Slurm refuses every expression that contains such a feature."""
    known = {feature for node in site.nodes.values() for feature in node.features}
    requested = re.findall(r"(?<![\w.*:-])[A-Za-z_][\w.:-]*", template.constraint or "")
    names = [name for name in requested if name not in known]
    if known and names:
        yield _cause(
            "constraint", f"no node has the feature {_some_names(names)}; known features: {_some_names(known)}"
        )


def _limits(template: AllocationTemplate, partition: Partition) -> Iterator[Cause]:
    name = partition.name
    for field, allowed in (("account", partition.accounts), ("qos", partition.qos)):
        requested = getattr(template, field)
        if requested is not None and allowed is not None and requested not in allowed:
            yield _cause(field, f"partition {name} allows {_some_names(allowed)}, not {requested}")


def _bounds(template: AllocationTemplate, partition: Partition) -> Iterator[str]:
    """Yield a warning for each limit of the partition that the template exceeds.

    A QOS with the flag PartitionTimeLimit or PartitionMaxNodes lifts such a limit, but `Site` does not have the flags
    of a QOS.
    """
    name = partition.name
    if partition.max_seconds is not None and walltime_seconds(template.time_limit) > partition.max_seconds:
        limit = walltime_text(partition.max_seconds)
        yield f'spec.allocation.timeLimit: partition {name} allows at most "{limit}" unless the QOS lifts this limit'
    if partition.max_nodes is not None and template.nodes > partition.max_nodes:
        yield f"spec.allocation.nodes: partition {name} allows at most {partition.max_nodes} unless the QOS lifts this limit"


def _sizes(template: AllocationTemplate, partition: Partition, site: Site) -> list[Cause]:
    """Return errors if a node in `nodelist` is not in the partition, if `exclude` names all nodes, or if too few of the
    remaining nodes are large enough.

    First each resource is checked separately. If every resource passes, all of them are checked together.
    """
    if not any(name in site.nodes for name in partition.nodes):
        return []  # the partition's nodes are unknown
    foreign = [n for text in template.nodelist for n in expand(text) if n not in partition.nodes]
    if foreign:
        return [_cause("nodelist", f"{_some_names(foreign)}: not in partition {partition.name}")]
    nodes = _nodes(template, partition, site)
    if not nodes:
        return [_cause("exclude", f"excludes every node of partition {partition.name}; remove some nodes from it")]
    found = [
        _cause(field, f"the largest node of partition {partition.name} has {show(max(sizes))} {what}")
        for field, what, requested, sizes, show in _requested_sizes(template, nodes)
        if requested > max(sizes)
    ]
    types = {type for node in nodes for type in node.gpu_types}
    if template.gpu_type is not None and types and template.gpu_type not in types:
        found.append(_cause("gpuType", f"partition {partition.name} has {_some_names(types)}, not {template.gpu_type}"))
    if not found and sum(_fits(template, n) for n in nodes) < template.nodes:
        found.append(_cause("nodes", f"partition {partition.name} has {len(nodes)} nodes, but too few of this size"))
    return found


def _requested_sizes(
    template: AllocationTemplate, nodes: Sequence[Node]
) -> list[tuple[str, str, int, list[int], Callable[[int], str]]]:
    """Return (field, name of the resource, requested amount, amount on each node, formatter of amounts)."""
    memory = "memoryPerCpu" if template.memory_per_cpu is not None else "memory"
    gpus = "gpusPerNode" if template.gpus_per_node else "gres"
    return [
        ("cpusPerTask", "CPUs", template.cpus_per_task, [n.cpus for n in nodes], str),
        (
            memory,
            "of memory",
            template.memory_bytes,
            [n.memory_bytes for n in nodes],
            lambda size: f"{size / GIB:.1f}G",
        ),
        (gpus, "GPUs", template.gpus, [n.gpus for n in nodes], str),
    ]


def _nodes(template: AllocationTemplate, partition: Partition, site: Site) -> list[Node]:
    """Return the nodes on which a job may start: a partition's known nodes without the excluded ones.

    A job of one node with a `nodelist` may start only on the nodes in this list. A job of several nodes may also get
    nodes that its `nodelist` does not name.
    """
    excluded = {name for text in template.exclude for name in expand(text)}
    named = {name for text in template.nodelist for name in expand(text)} if template.nodes == 1 else set()
    names = (named or partition.nodes) - excluded
    return [site.nodes[name] for name in sorted(names) if name in site.nodes]


def _fits(template: AllocationTemplate, node: Node) -> bool:
    typed = template.gpu_type is None or not node.gpu_types or template.gpu_type in node.gpu_types
    enough = node.cpus >= template.cpus_per_task and node.memory_bytes >= template.memory_bytes
    return enough and node.gpus >= template.gpus and typed


def _some_names(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    return ", ".join(found[:MOST_NAMES]) + more


def _cause(field: str, message: str) -> Cause:
    return Cause(f"spec.allocation.{field}", message)
