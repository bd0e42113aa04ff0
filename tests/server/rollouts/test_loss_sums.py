"""Lost attempts and leases are counted from the histories that `step` writes."""

from __future__ import annotations

from dataclasses import replace

from rollyard.kinds.rollout import Status
from rollyard.kinds.rollout_history import LossSums
from rollyard.server.rollouts.history import KEPT_FIRST, KEPT_LAST
from rollyard.server.rollouts.loss_sums import loss_sums
from rollyard.server.rollouts.step import Granted, Lost, RunStored
from rollyard.store.base import RolloutRecord
from tests.server.rollouts.test_history import BLOB, finished, granted, stepped
from tests.support.make import rollout


def on(node: str, at: float) -> Granted:
    return Granted(at, "uid/i", node, {"policy": "e1"})


def lost_often() -> RolloutRecord:
    """Rollout that lost a sandbox on n1, its lease in EVAL on n2 and one to Slurm on n3, was handed back, and ended well."""
    return stepped(
        rollout("a"),
        granted(),
        finished(1, Status.INFRA_FAILED, 2.0),
        on("n2", 3.0),
        RunStored(4.0, 2, BLOB, BLOB),
        Lost(5.0, 2, "Expired"),
        on("n3", 6.0),
        Lost(7.0, 3, "AllocationEnded", blameless=True),
        on("n3", 8.0),
        Lost(9.0, 4, "Drained", handed_back=True),
        granted(10.0),
        finished(5, Status.COMPLETED, 11.0),
    )


def test_losses_are_counted_by_reason_and_node_though_the_rollouts_went_on() -> None:
    first = lost_often()
    assert (first.status, first.losses, first.lost) == (Status.COMPLETED, 1, 3)
    second = stepped(rollout("b"), on("n2", 1.0), Lost(20.0, 1, "Expired"), on("n2", 21.0), Lost(22.0, 2, "Expired"))
    histories = [(one.id, one.history) for one in (first, second)]
    expired = LossSums(reason="Expired", node="n2", losses=3, rollouts=2, newest="b", newest_at=22.0)
    ended = LossSums(reason="AllocationEnded", node="n3", losses=1, rollouts=1, newest="a", newest_at=7.0)
    sandbox = LossSums(reason="SandboxLost", node="n1", losses=1, rollouts=1, newest="a", newest_at=2.0)
    assert loss_sums(histories, 0.0) == [expired, ended, sandbox]
    assert loss_sums(histories, 7.0) == [expired.model_copy(update={"losses": 2, "rollouts": 1}), ended]


def test_a_loss_that_ends_a_rollout_does_not_count() -> None:
    record = stepped(rollout(), granted(), replace(finished(1, Status.INFRA_FAILED), max_attempts=1))
    assert (record.status, record.lost) == (Status.INFRA_FAILED, 0)
    assert loss_sums([(record.id, record.history)], 0.0) == []


def test_dropped_entries_leave_the_node_of_a_loss_unknown() -> None:
    record = stepped(rollout(), on("n1", 0.0), RunStored(0.5, 1, BLOB, BLOB))
    for fence in range(1, KEPT_FIRST + KEPT_LAST):
        record = stepped(record, Lost(float(fence), fence, "Expired", blameless=True), on("n1", fence + 0.5))
    rows = loss_sums([(record.id, record.history)], 0.0)
    assert {row.node for row in rows} <= {"n1", None}
    assert sum(row.losses for row in rows) < record.lost
