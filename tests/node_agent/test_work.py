"""A lease's way to its upload, where that does not go as it should."""

from __future__ import annotations

from typing import Any, cast

from rollyard.agents.tasks.base import TaskHandler
from rollyard.agents.tasks.installed import Handlers
from rollyard.agents.tasks.math import MathHandler
from rollyard.errors import TooLarge
from rollyard.kinds.rollout import Outcome, RunResult, Status
from rollyard.kinds.wire import Lease, LeaseRef
from rollyard.node_agent.work import Work, Workshop

LEASE = Lease.model_validate(
    {
        "namespace": "default", "id": "r", "fence": 1, "attempt": 1, "sample_index": 0, "agent": {}, "sampling": {},
        "budgets": {}, "task": {"kind": "math", "problem": "1+1", "answer": "2"},
    }
)  # fmt: skip


HANDLERS = Handlers({"math": MathHandler()}, {})


class Full:
    """A server that takes no run of this size."""

    def __init__(self) -> None:
        self.told: list[Outcome] = []

    async def run(self, ref: LeaseRef, result: RunResult) -> None:
        raise TooLarge("a result may have at most 268435456 bytes")

    async def result(self, ref: LeaseRef, outcome: Outcome) -> None:
        self.told.append(outcome)


class Ran(Work):
    async def _run(self, handler: TaskHandler) -> RunResult:
        return RunResult(outcome=Outcome(status=Status.COMPLETED), artifact={})


async def test_a_run_above_the_limit_fails_and_is_not_repeated() -> None:
    uploads, nothing = Full(), cast(Any, None)
    shop = Workshop(nothing, nothing, HANDLERS, cast(Any, uploads), nothing, nothing, nothing, nothing, node="n")
    await Ran(shop, LEASE, lambda: None).pursue()
    (told,) = uploads.told
    assert told.status is Status.FAILED
    assert told.error is not None
    assert (told.error.reason, "at most 268435456 bytes" in told.error.message) == ("TaskError", True)
