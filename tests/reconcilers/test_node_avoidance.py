"""A node on which every job fails is avoided for some time, and the others serve. What may be the template's fault is not
blamed on the nodes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rollyard.kinds.allocation import Allocation, AllocationTemplate
from rollyard.kinds.base import evolve
from rollyard.reconcilers.node_avoidance import (
    AVOID_SECONDS,
    FAILURES_IN_A_ROW,
    MOST_UNPROVEN,
    avoiding,
    avoids_needlessly,
    bad_nodes,
)
from rollyard.reconcilers.plan import KEPT_ENDED, Member, plan_pool, template_hash
from rollyard.reconcilers.pool import new_allocation
from rollyard.slurm.base import Node, Partition, Site
from tests.support import make

NOW = 1_700_000_000.0
TEMPLATE = AllocationTemplate()
NAMES = [f"n{i}" for i in range(1, 9)]


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


def site(*names: str, state: str = "idle") -> Site:
    nodes = {name: Node(name, "idle" if name in names else state, cpus=8) for name in NAMES if name in names or state}
    return Site("22.05", {"main": Partition("main", True, frozenset(nodes), default=True)}, nodes)


ALL = site(*NAMES)


def failed(index: int, node: str, ago: float = 10.0, **more: Any) -> Allocation:
    spec = {"template_hash": more.pop("hash", "new"), "drain": more.pop("drain", False)}
    status: dict[str, Any] = {"jobState": "FAILED", "node": node, "endTime": at(-ago), "exitCode": 1} | more
    return make.allocation(f"p-{index}", created=at(-ago - 2), spec=spec, **status)


def served(index: int, node: str, ago: float = 100.0, **more: Any) -> Allocation:
    return failed(index, node, jobState="RUNNING", readyAt=at(-ago), endTime=None, **more)


def avoided(*allocations: Allocation, of: Site | None = ALL, template: AllocationTemplate = TEMPLATE) -> list[str]:
    return [node.name for node in bad_nodes(template, "new", allocations, of, NOW)]


def test_a_node_that_fails_twice_in_a_row_is_avoided_until_some_time_after_the_last_failure() -> None:
    assert avoided(failed(0, "n1")) == []
    assert avoided(failed(0, "n1", 30), failed(1, "n1", 20)) == ["n1"]
    (node,) = bad_nodes(TEMPLATE, "new", [failed(1, "n1", 20), failed(0, "n1", 30)], ALL, NOW)
    assert [a.spec.index for a in node.failed] == [0, 1]
    assert node.until == NOW - 20 + AVOID_SECONDS
    assert avoided(failed(0, "n1", AVOID_SECONDS + 9), failed(1, "n1", AVOID_SECONDS)) == []
    assert avoided(failed(0, "n1", AVOID_SECONDS + 9), failed(1, "n1", 1)) == ["n1"], "one more failure is enough"
    assert avoided(failed(0, "n1", -5), failed(1, "n1", -9)) == ["n1"], "Slurm's clock may be ahead"


@pytest.mark.parametrize(
    "more",
    [
        {"hash": "old"},
        {"drain": True},
        {"jobState": "CANCELLED"},
        {"jobState": "NODE_FAIL"},
        {"jobState": "TIMEOUT"},
        {"readyAt": at(-12)},
        {"node": ""},
    ],
)
def test_an_end_of_another_kind_speaks_for_nothing(more: dict[str, Any]) -> None:
    node = more.pop("node", "n1")
    assert avoided(failed(0, node, **more), failed(1, node, **more)) == []
    assert avoided(failed(0, node, **more), failed(1, "n1")) == []


def test_a_node_on_which_an_allocation_was_ready_since_is_used() -> None:
    failures = failed(0, "n1", 50), failed(1, "n1", 40)
    assert avoided(*failures, served(2, "n1", 30)) == []
    assert avoided(*failures, served(2, "n1", 60)) == ["n1"]
    assert avoided(*failures, served(2, "n2", 30)) == ["n1"]


def test_a_template_that_fails_on_many_nodes_is_not_blamed_on_them() -> None:
    def on(count: int) -> list[Allocation]:
        return [failed(2 * i + k, name) for i, name in enumerate(NAMES[:count]) for k in range(FAILURES_IN_A_ROW)]

    assert avoided(*on(MOST_UNPROVEN)) == NAMES[:MOST_UNPROVEN]
    assert avoided(*on(MOST_UNPROVEN + 1)) == []
    assert avoided(*on(MOST_UNPROVEN + 1), served(90, "n8")) == NAMES[: MOST_UNPROVEN + 1]


def test_the_last_node_that_can_run_the_job_is_never_avoided() -> None:
    twice = failed(0, "n1"), failed(1, "n1")
    assert avoided(*twice, of=site("n1", state="")) == []
    assert avoided(*twice, of=site("n1", state="down*")) == []
    assert avoided(*twice, of=Site("local", {}, {})) == []
    assert avoided(*twice, template=AllocationTemplate(exclude=["n[2-8]"])) == []
    assert avoided(*twice, template=AllocationTemplate(nodelist=["n1"])) == []
    assert avoided(*twice, template=AllocationTemplate(nodes=2)) == []
    assert avoided(*twice, template=AllocationTemplate(within="7")) == []


def test_a_doubt_about_the_template_itself_does_not_matter() -> None:
    nodes = {name: Node(name, "idle", cpus=8) for name in NAMES}
    short = Site("22.05", {"main": Partition("main", True, frozenset(nodes), default=True, max_seconds=60)}, nodes)
    assert avoided(failed(0, "n1"), failed(1, "n1"), of=short) == ["n1"]


def test_a_restarted_server_keeps_to_its_decision_until_it_has_read_the_nodes() -> None:
    twice = failed(0, "n1"), failed(1, "n1")
    waiting = failed(2, "", jobState="PENDING", endTime=None)
    assert avoided(*twice, waiting, of=None) == []
    decided = evolve(waiting, spec=evolve(waiting.spec, template=AllocationTemplate(exclude=["n1"])))
    assert avoided(*twice, decided, of=None) == ["n1"]


def test_new_allocations_avoid_the_node_and_are_up_to_date_all_the_same() -> None:
    pool = make.rollout_pool("p", allocation={"exclude": ["n7"]})
    nodes = bad_nodes(pool.spec.allocation, "new", [failed(0, "n1"), failed(1, "n1")], ALL, NOW)
    made = new_allocation(pool, 2, nodes)
    assert made.spec.template.exclude == ["n7", "n1"]
    assert made.spec.template_hash == template_hash(pool)
    assert new_allocation(pool, 2).spec.template == pool.spec.allocation == avoiding(pool.spec.allocation, ())
    assert not avoids_needlessly(made, pool.spec.allocation, nodes)
    assert avoids_needlessly(made, pool.spec.allocation, ())


def test_the_plan_keeps_the_evidence_and_replaces_what_waits_for_other_nodes_needlessly() -> None:
    pool = make.rollout_pool("p", replicas=1)
    hash = template_hash(pool)
    ended = [failed(i, "n1" if i < 2 else "n2", 300 - i, hash=hash) for i in range(2 + KEPT_ENDED)]
    nodes = bad_nodes(pool.spec.allocation, hash, ended, ALL, NOW)
    waiting = new_allocation(pool, 9, nodes)
    members = [Member(a, False) for a in [*ended, waiting]]

    def deleted(now: float, **more: Any) -> tuple[str, ...]:
        return plan_pool(pool, members, 1, now, slurm_known=True, **more).delete

    assert deleted(NOW, avoided=nodes) == ()
    assert set(deleted(NOW)) == {"p-0", "p-1", waiting.metadata.name}
