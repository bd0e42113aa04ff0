"""Templates that are refused before a submit: the field, and a value that one can write instead."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.slurm.base import Node, Partition, Site
from rollyard.slurm.scontrol_text import read_site
from rollyard.slurm.site_check import check, find_doubts

GIB = 1 << 30
NODES = {
    "c1": Node("c1", "idle", cpus=64, memory_bytes=256 * GIB, features=frozenset({"avx"})),
    "c2": Node("c2", "down*", cpus=64, memory_bytes=256 * GIB),
    "g1": Node(
        "g1", "drained", "fan", 32, 128 * GIB, gpus=8, features=frozenset({"a100"}), gpu_types=frozenset({"a100"})
    ),
}
PARTITIONS = {
    "cpu": Partition("cpu", True, frozenset({"c1", "c2"}), default=True, max_seconds=86_400, max_nodes=2),
    "gpu": Partition("gpu", True, frozenset({"g1"}), max_seconds=3 * 86_400, accounts=frozenset({"rl", "ml"})),
}
SITE = Site("22.05", PARTITIONS, NODES)


def wrong(site: Site = SITE, **fields: Any) -> list[str]:
    found = check(AllocationTemplate.model_validate({"timeLimit": "08:00:00", **fields}), site)
    return [f"{cause.field}: {cause.message}" for cause in found]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"partition": "gpu", "gpusPerNode": 8, "account": "rl"},
        {"partition": "cpu,gpu", "gpusPerNode": 8},
        {"partition": "cpu,gpu", "timeLimit": "2-00:00:00"},
        {"nodes": 2, "cpusPerTask": 64},
    ],
)
def test_what_can_start_somewhere_some_day_is_let_through(fields: dict[str, Any]) -> None:
    assert wrong(**fields) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partition": "gp"}, "partition: there is no partition gp; write one of cpu, gpu"),
        ({"cpusPerTask": 65}, "cpusPerTask: the largest node of partition cpu has 64 CPUs"),
        ({"memory": "300G"}, "memory: the largest node of partition cpu has 256.0G of memory"),
        ({"gpusPerNode": 1}, "gpusPerNode: the largest node of partition cpu has 0 GPUs"),
        ({"partition": "gpu", "account": "bio"}, "account: partition gpu allows ml, rl, not bio"),
        ({"partition": "gpu", "gres": "gpu:9"}, "gres: the largest node of partition gpu has 8 GPUs"),
        (
            {"memoryPerCpu": "200G", "cpusPerTask": 2},
            "memoryPerCpu: the largest node of partition cpu has 256.0G of memory",
        ),
        ({"nodelist": ["c9"]}, "nodelist: there is no node c9; the site has c1, c2, g1"),
        ({"exclude": ["c[1-9]"]}, "exclude: there is no node c3, c4, c5, c6, c7, c8, c9; the site has c1, c2, g1"),
        ({"nodelist": ["g1"]}, "nodelist: g1: not in partition cpu"),
        ({"exclude": ["c1,c2"]}, "exclude: excludes every node of partition cpu; remove some nodes from it"),
        ({"constraint": "avx&fast"}, "constraint: no node has the feature fast; known features: a100, avx"),
        ({"partition": "gpu", "gpusPerNode": 1, "gpuType": "h100"}, "gpuType: partition gpu has a100, not h100"),
        ({"nodes": 2, "exclude": ["c1"]}, "nodes: partition cpu has 1 nodes, but too few of this size"),
    ],
)
def test_what_can_never_start_is_refused(fields: dict[str, Any], message: str) -> None:
    assert f"spec.allocation.{message}" in wrong(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, []),
        (
            {"nodelist": ["c2"]},
            ["no suitable node is usable now: c2 is down*; jobs wait until one comes back"],
        ),
        (
            {"partition": "gpu"},
            ["no suitable node is usable now: g1 is drained (fan); jobs wait until one comes back"],
        ),
        ({"partition": "gpu,cpu"}, []),
        (
            {"timeLimit": "2-00:00:00"},
            ['spec.allocation.timeLimit: partition cpu allows at most "1-00:00:00" unless the QOS lifts this limit'],
        ),
        ({"timeLimit": "2-00:00:00", "partition": "cpu,gpu", "exclude": ["g1"]}, []),
    ],
)
def test_what_has_to_wait_or_may_be_refused_is_a_warning(fields: dict[str, Any], words: list[str]) -> None:
    assert find_doubts(AllocationTemplate.model_validate(fields), SITE) == words


def test_where_nothing_is_known_nothing_is_refused() -> None:
    assert wrong(Site("local", {}, {}), partition="x", gpusPerNode=9) == []
    assert wrong(Site("22.05", PARTITIONS, {}), gpusPerNode=9) == []


def test_scontrols_lines_are_read() -> None:
    config = "Configuration data as of 2026\nSLURM_VERSION           = 22.05.8\n"
    partition = (
        "PartitionName=gpu AllowGroups=ALL AllowAccounts=rl,ml AllowQos=ALL Default=YES MaxNodes=4 MaxTime=2-00:00:00 "
        "State=UP TotalCPUs=64 TotalNodes=1"
    )
    node = (
        "NodeName=g1 Arch=x86_64 CPUAlloc=0 CPUTot=32 AvailableFeatures=a100,ib Gres=gpu:a100:4(S:0-1),gpu:2,shard:8 "
        "OS=Linux 6.1 #1 SMP RealMemory=1024 State=IDLE+DRAIN Partitions=gpu BootTime=None "
        "Reason=a fan is broken [root@2026-01-02T03:04:05]"
    )
    site = read_site(config, partition, node)
    assert site.version == "22.05.8"
    assert site.partitions["gpu"] == Partition(
        "gpu", True, frozenset({"g1"}), default=True, max_seconds=172_800, max_nodes=4, accounts=frozenset({"rl", "ml"})
    )
    assert site.nodes["g1"] == Node(
        "g1", "idle+drain", "a fan is broken", 32, GIB, 6, frozenset({"a100", "ib"}), frozenset({"a100"})
    )
    assert not site.nodes["g1"].usable


def test_what_one_machine_without_slurm_does_not_have_is_told() -> None:
    local = Site("local", {}, {"me": Node("me", "idle", cpus=2, memory_bytes=24 * GIB)})
    asked = {"partition": "gpu", "qos": "high", "gpusPerNode": 8, "cpusPerTask": 10**12, "memory": "128G"}
    template = AllocationTemplate.model_validate({"timeLimit": "08:00:00", **asked})
    assert find_doubts(template, local) == [
        "without Slurm, spec.allocation.partition, spec.allocation.qos has no effect",
        "spec.allocation.cpusPerTask: this machine has 2 CPUs, not 1000000000000; without Slurm the job starts all the same",
        "spec.allocation.memory: this machine has 24.0G of memory, not 128.0G; without Slurm the job starts all the same",
        "spec.allocation.gpusPerNode: this machine has 0 GPUs, not 8; without Slurm the job starts all the same",
    ]
    small = AllocationTemplate.model_validate({"timeLimit": "08:00:00", "cpusPerTask": 2})
    assert find_doubts(small, local) == []
