"""An older node agent reads a lease of a newer server."""

from __future__ import annotations

import json
from typing import Any

from rollyard.kinds.rollout import AgentSpec, Budgets, Sampling
from rollyard.kinds.task import Task
from rollyard.wire.node import Grant, Lease, LeaseRef, to_node


def lease(**more: Any) -> Lease:
    fields = {"namespace": "default", "id": "a", "fence": 1, "attempt": 1, "sample_index": 0, "task": Task(kind="math")}
    given: dict[str, Any] = {"agent": AgentSpec(), "sampling": Sampling(), "budgets": Budgets(), **fields, **more}
    return Lease(**given)


def test_what_nobody_asked_for_is_not_sent() -> None:
    sent = json.loads(lease(sampling=Sampling(temperature=0.5, logit_bias={3: 1.0})).model_dump_json())
    assert sent["sampling"] == {"temperature": 0.5, "logit_bias": {"3": 1.0}}
    assert (sent["agent"], sent["budgets"]) == ({}, {})


def test_a_lease_is_read_as_it_was_written() -> None:
    asked = lease(
        agent=AgentSpec(max_turns=3, tool_parser="glm"),
        sampling=Sampling(seed=1, stop=["END"], logit_bias={3: 1.0}, extra={"watermarking": False}),
        budgets=Budgets(run_seconds=2.0),
    )
    assert Lease.model_validate_json(asked.model_dump_json()) == asked


def test_a_lease_that_asks_for_something_newer_hides_no_other() -> None:
    sent = json.loads(Grant(leases=[lease(), lease(id="b"), lease(id="c")]).model_dump_json())
    assert sent.keys() == {"type", "leases"}
    sent["leases"][0]["agent"]["some_day"] = 1
    sent["leases"][1] |= {"stage": "REVIEW", "some_day": 1}
    grant = to_node(json.dumps(sent))
    assert isinstance(grant, Grant)
    assert [one.id for one in grant.leases] == ["c"]
    assert [one.lease for one in grant.unread] == [LeaseRef(namespace="default", id="a", fence=1), None]
    assert "some_day" in grant.unread[0].why
