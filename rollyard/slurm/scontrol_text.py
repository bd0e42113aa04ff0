"""Parser of the output of `scontrol show` about the configuration, partitions and nodes. Pure."""

from __future__ import annotations

import re

from rollyard.kinds.values.quantity import walltime_seconds
from rollyard.slurm.base import Node, Partition, Site

ANY = {"ALL", "(null)", "N/A", "UNLIMITED", "INFINITE", ""}
"""Values with which scontrol shows that there is no limit."""
MIB = 1 << 20


def read_site(config: str, partitions: str, nodes: str) -> Site:
    """Parse the outputs of `scontrol show config`, `scontrol -o show partition` and `scontrol -o show node`."""
    version = re.search(r"SLURM_VERSION\s*=\s*(\S+)", config)
    known: dict[str, Node] = {}
    members: dict[str, set[str]] = {}
    for line in filter(None, nodes.splitlines()):
        node = _node(line)
        known[node.name] = node
        for partition in _value(line, "Partitions").split(","):
            members.setdefault(partition, set()).add(node.name)
    found = [
        _partition(line, frozenset(members.get(_value(line, "PartitionName"), ())))
        for line in filter(None, partitions.splitlines())
    ]
    return Site(version[1] if version else "unknown", {p.name: p for p in found}, known)


def _node(line: str) -> Node:
    reason = re.search(r" Reason=(.*?)(?: \[\S+@\S+\])?(?: Comment=.*)?$", line)
    return Node(
        name=_value(line, "NodeName"),
        state=_value(line, "State").lower(),
        reason=reason[1] if reason else "",
        cpus=int(_value(line, "CPUTot") or 0),
        memory_bytes=int(_value(line, "RealMemory") or 0) * MIB,
        gpus=gpus_of_gres(_value(line, "Gres")),
        features=_names(_value(line, "AvailableFeatures")) or frozenset(),
        gpu_types=gpu_types_of_gres(_value(line, "Gres")),
    )


def gpus_of_gres(gres: str) -> int:
    """Return the number of GPUs in a list such as `gpu:4,gpu:a100:2(S:0-1),shard:8`, which has 6."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    return sum(int(found[1]) for word in plain.split(",") if (found := re.fullmatch(r"gpu(?::[^:,]+)*?:(\d+)", word)))


def gpu_types_of_gres(gres: str) -> frozenset[str]:
    return frozenset(re.findall(r"\bgpu:([A-Za-z][^:,(]*):\d", gres))


def _partition(line: str, nodes: frozenset[str]) -> Partition:
    most, longest = _value(line, "MaxNodes"), _value(line, "MaxTime")
    return Partition(
        name=_value(line, "PartitionName"),
        up=_value(line, "State") == "UP",
        nodes=nodes,
        default=_value(line, "Default") == "YES",
        max_seconds=None if longest in ANY else walltime_seconds(longest),
        max_nodes=None if most in ANY else int(most),
        accounts=_names(_value(line, "AllowAccounts")),
        qos=_names(_value(line, "AllowQos")),
    )


def _value(line: str, key: str) -> str:
    found = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return found[1] if found else ""


def _names(text: str) -> frozenset[str] | None:
    return None if text in ANY else frozenset(text.split(","))
