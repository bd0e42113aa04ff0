"""The condition ToolCalls: which of several proofs counts, and what is served without one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import pytest

from rollyard.kinds.base import Condition, ConditionUpdate, set_conditions
from rollyard.kinds.pool import PoolStatus
from rollyard.kinds.schema.columns import pool_reason
from rollyard.reconcilers.conditions import changes, tool_calls
from rollyard.wire.tool_proof import ToolProof


def proof(status: Literal["True", "False", "Unknown"]) -> ToolProof:
    return ToolProof(status=status, reason=f"Because{status}", message=f"it is {status}")


@pytest.mark.parametrize(
    ("proofs", "status"),
    [
        (["True", "False"], False),
        (["Unknown", "True"], True),
        (["Unknown", "Unknown"], None),
        (["Unknown", "False", "True"], False),
    ],
)
def test_one_refuted_proof_counts_and_an_unknown_one_says_least(
    proofs: list[Literal["True", "False", "Unknown"]], status: bool | None
) -> None:
    found = tool_calls([proof(one) for one in proofs])
    assert found[:3] == ("ToolCalls", status, "BecauseUnknown" if status is None else f"Because{status}")


def test_a_pool_whose_template_nobody_has_loaded_is_unknown() -> None:
    assert tool_calls([])[:3] == ("ToolCalls", None, "NotProven")


def conditions(*updates: ConditionUpdate) -> list[Condition]:
    return set_conditions([], updates, generation=1, now=datetime(2026, 1, 1, tzinfo=UTC))


def test_unread_calls_are_shown_beside_a_ready_pool_and_told_by_one_event() -> None:
    ready = ConditionUpdate("Ready", True, "AllReady")
    before = conditions(ready, tool_calls([proof("True")]))
    after = conditions(ready, tool_calls([proof("False")]))
    assert pool_reason(after) == "AllReady,ToolCalls=False"
    assert pool_reason(before) == "AllReady"
    (event,) = changes(PoolStatus(conditions=before), PoolStatus(conditions=after))
    assert (event.reason, event.message, event.warning) == ("BecauseFalse", "it is False", True)
    assert not list(changes(PoolStatus(conditions=after), PoolStatus(conditions=after)))
