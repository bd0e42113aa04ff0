"""The condition ToolCalls of an InferencePool. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.kinds.base import ConditionUpdate
from rollyard.wire.tool_proof import ToolProof

NOT_PROVEN = "no process has loaded the model's chat template yet; tasks with tools are accepted"


def tool_calls(proofs: Sequence[ToolProof]) -> ConditionUpdate:
    """Whether the model's tool calls are read. One refuted proof is enough for False; Unknown says less than True."""
    for status, known in (("False", False), ("True", True), ("Unknown", None)):
        for proof in proofs:
            if proof.status == status:
                return ConditionUpdate("ToolCalls", known, proof.reason, proof.message)
    return ConditionUpdate("ToolCalls", None, "NotProven", NOT_PROVEN)
